// Package clmfaults runs a whole lifecycle manager on a real PostgreSQL: API servers, sentinels,
// adapters and a broker, each a process of its own. It kills each process again and again while
// writers create, patch and delete resources, and then compares the resources with the requests. It
// has no code outside of tests; no package imports it.
package clmfaults
