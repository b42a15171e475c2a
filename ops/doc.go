// Package ops runs long-running operations. An operation is a document that a service commits in the
// same transaction as the change that needs it: an accepted request has its operation, whatever fails
// afterwards. A resource has at most one active operation, and the transaction that ends the operation
// also changes the resource, so that a resource is never busy without an operation that ends.
//
// The decisions are a pure function: State.Apply takes an event and the time, and returns the next
// state with its effects. An Engine commits these states in the service's own store, leases each
// active operation to one process, calls the service's Worker, and sends notifications about ended
// operations. Worker and engine may be killed at any statement: the lease expires and another process
// continues. ViewAsARM and Conditions are projections of a State.
//
// It is a tool for services that accept a request before its work is done. It knows no resource, and
// no package of a service may be imported here.
package ops
