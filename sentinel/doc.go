// Package sentinel decides, from the change feed and the clock, which resources
// need work now, and sends an event for each of them to the adapters on the bus.
//
// It follows one feed and keeps a few words of each resource: its last event,
// and when to decide again ([State]; its transitions are pure functions of what
// happens and of the time). The rules are HyperFleet's message_decision, CEL over the
// resource's wire form ([Config], [Rules]). Events are HyperFleet's
// CloudEvents, at least once; while the broker is down they coalesce for each
// resource. A cursor in the feed, saved only once the broker has what lies
// before it, is the outbox.
//
// Replicas share the resources in slots, by a hash of the id, under leases in
// the database. Two may hold a slot for a moment, and send twice; no slot is
// left out.
//
// It works on the store of CLM, and on documents' wire form, and knows nothing
// else of CLM; cli puts them into one process or into two. Services do not
// import it.
package sentinel
