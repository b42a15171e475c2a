// Package lifecycle tests how clusters come to life and end, in a region inside of the test: the lifecycle manager,
// its sentinel, Maestro, an agent, the API server of a management cluster, and Atoll's adapters. It has no code of its
// own; nothing imports it.
package lifecycle
