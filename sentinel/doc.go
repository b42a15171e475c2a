// Package sentinel decides, from the change feed and the clock, which resources
// need work now, and sends an event for each of them to the adapters on the bus.
//
// It follows one feed and keeps a small state of each resource: its last event, and the time of the
// next decision ([State]). The transitions of a state are pure functions of an event and the time. The
// rules are HyperFleet's message_decision, CEL over the resource's wire form ([Config], [Rules]).
// Events are HyperFleet's CloudEvents, delivered at least once; while the broker is down, the events
// of one resource become one. There is no outbox: the sentinel saves a cursor of the feed only after
// the broker has acknowledged the events of all changes before it, and resumes from there.
//
// Replicas share the resources in slots, by a hash of the id, under leases in
// the database. Two replicas may hold a slot for a moment, and send an event twice; no slot is
// without a holder for longer than a lease.
//
// It works on the store of CLM, and on documents' wire form, and knows nothing
// else of CLM; cli puts them into one process or into two. Services do not
// import it.
package sentinel
