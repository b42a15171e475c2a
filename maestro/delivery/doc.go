// Package delivery decides which work is sent to which consumer, and when.
//
// Machine has the unacknowledged works of Maestro's ledger. It receives events (a
// change, an acknowledgement, the end of a publish, a connection, the time) and
// returns the works to send next. Each consumer has lanes of its own, so that a
// flooded or offline consumer delays no other. A lane has only the latest generation
// of a work, sends a bounded number of works ahead of the acknowledgements, and sends
// unacknowledged works again with back-off.
//
// It does no I/O, has no goroutine and reads no clock. Only package maestro
// imports it.
package delivery
