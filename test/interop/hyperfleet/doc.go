// Package hyperfleet is a client of hyperfleet-api v1, made by a generator that is not ours from a document without
// Atoll's additions (openapi.yaml). Programs that were written against such a client must work with Atoll's lifecycle
// manager unchanged; the tests of package interop hold that. It is for those tests only.
package hyperfleet

//go:generate go tool -modfile=../../../go.mod oapi-codegen --config client.cfg.yaml openapi.yaml
