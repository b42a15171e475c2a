// Package interop holds Atoll's Maestro server and agent against other people's programs: OCM's work agent, the
// source and agent clients of OCM's SDK, and Debian's Mosquitto as the broker. Its tests run the built binaries (of
// ATOLL_BIN and ATOLL_KUBE_BIN) against real PostgreSQL and a real API server, and look at what is on the wire.
//
// It is a module of its own, so that the foreign programs' dependencies stay out of ours. It imports no package of
// ours, else their dependencies would unify, and nothing imports it.
package interop
