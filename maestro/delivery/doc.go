// Package delivery decides which work is sent to which consumer, and when.
//
// It is Maestro's ledger at work: a work is wanted at a generation, or wanted
// gone, until its agent has acknowledged that. Machine takes what happens (a
// change, an acknowledgement, a publish that ended, a connection, the clock)
// and answers what to send next. Each consumer has a lane of its own, so that
// one that is flooded or offline delays no other; a lane holds only the latest
// generation of a work, keeps a bounded number of works ahead of its consumer,
// and sends again, with back-off, what was not acknowledged.
//
// It does no I/O, has no goroutine and asks no clock. Only package maestro
// imports it.
package delivery
