package sentinel

import (
	"context"
	"testing"
	"time"

	"atoll.dev/bus"
	"atoll.dev/store"
)

// A document that changed while it was read is read again: the rules' decision about the
// old version does not hold for the new one.
func TestADocumentThatChangesWhileItIsReadIsReadAgain(t *testing.T) {
	w := newWorld(t)
	st := w.open()
	s, err := New(t.Context(), Options{Store: st, Feed: st.NewBroadcast(nil), Kinds: []Kind{{channel, "channels", ""}},
		Bus: w.client("clm", bus.ClientOptions{})})
	must(t, 0, err)
	s.connected = true
	k := key{channel, "ch"}
	now := time.Now()
	slot := slotOf(k.id)
	s.slots[slot].epoch, s.slots[slot].ready = 1, true
	old := w.create(channel, k.id, nil)
	r := s.table.getOrAdd(k, slot)
	s.table.setState(r, s.policy.ApplyListed(r.State, Change{Version: 1, Generation: 1}, NextDecision{}, now))
	s.table.setState(r, s.policy.ApplyRequest(r.State, Urgent, 1, now))
	s.table.setState(r, func() State { x := r.State; x.Requested = false; return x }())
	s.decideDue(t.Context(), now) // hands the key to readDue
	<-s.toRead
	w.change(channel, k.id, 1)
	changed, err := st.Get(t.Context(), channel, k.id)
	must(t, 0, err)
	s.lastRound = 7
	s.applyChange(&store.Change{Document: changed}, now)
	s.table.releaseDocument(r) // as if maxDocumentBytes were reached
	s.decideRead(t.Context(), []key{k}, map[key]*store.Document{k: &old}, nil)
	if r.Unsent == 0 || r.queue == nil || len(s.toPublish) != 0 {
		t.Fatalf("the event is not unsent: %+v", r.State)
	}
	s.decideDue(t.Context(), now)
	<-s.toRead
	s.decideRead(t.Context(), []key{k}, map[key]*store.Document{k: &changed}, nil)
	if !r.Sending || len(s.toPublish) != 1 {
		t.Fatalf("no event is in flight: %+v", r.State)
	}
}

// sentinelWithoutLoop returns a sentinel whose loop does not run, and that holds the slot of an id.
func (w *world) sentinelWithoutLoop(id string) (*Sentinel, key) {
	w.t.Helper()
	st := w.open()
	s, err := New(w.t.Context(), Options{Store: st, Feed: st.NewBroadcast(nil),
		Kinds: []Kind{{channel, "channels", ""}}, Bus: w.client("clm", bus.ClientOptions{})})
	must(w.t, 0, err)
	s.connected = true
	slot := slotOf(id)
	s.slots[slot].epoch, s.slots[slot].ready = 1, true
	return s, key{channel, id}
}

// If the end of the process interrupts a decision, the event stays unsent, and the next holder of the slot sends it.
func TestAnInterruptedDecisionLeavesItsEventUnsent(t *testing.T) {
	w := newWorld(t)
	s, k := w.sentinelWithoutLoop("ch")
	doc := w.create(channel, k.id, nil)
	now := time.Now()
	s.lastRound = 7
	s.applyChange(&store.Change{Document: doc}, now)
	r := s.table.all[k]
	ended, end := context.WithCancel(t.Context())
	end()
	s.decide(ended, r, &doc, now)
	if r.Unsent != 7 || r.Sending {
		t.Errorf("the event is not unsent: %+v", r.State)
	}
	s.decide(t.Context(), r, &doc, now)
	if !r.Sending {
		t.Errorf("no event is in flight: %+v", r.State)
	}
}

// A due resource that waits for readDue uses no token of the limit of routine events.
func TestAResourceThatWaitsForReadDueUsesNoToken(t *testing.T) {
	w := newWorld(t)
	s, k := w.sentinelWithoutLoop("ch")
	now := time.Now()
	change := Change{Version: 1, Generation: 1}
	s.table.setState(s.table.getOrAdd(k, slotOf(k.id)), s.policy.ApplyListed(State{}, change, NextDecision{Wanted: true},
		now))
	s.isReading = true
	before := s.routineLimit.TokensAt(now)
	for range 10 {
		s.decideDue(t.Context(), now)
	}
	if after := s.routineLimit.TokensAt(now); after != before {
		t.Errorf("of %v tokens %v are left", before, after)
	}
	s.isReading = false
	s.decideDue(t.Context(), now)
	if got := <-s.toRead; len(got) != 1 || got[0] != k || s.routineLimit.TokensAt(now) >= before {
		t.Errorf("readDue gets %v, and %v tokens are left", got, s.routineLimit.TokensAt(now))
	}
}

// After the restoration of a database backup, the sentinel reads a document again that had been
// removed, at an older version.
func TestADocumentOfARestoredDatabaseIsRead(t *testing.T) {
	w := newWorld(t)
	s, k := w.sentinelWithoutLoop("ch")
	s.startGoroutine = func(func(context.Context)) {}
	s.subscription = s.opts.Feed.Subscribe(s.isRelevant)
	defer func() { s.subscription.Close() }()
	s.slots[slotOf(k.id)].ready = false
	s.applyChange(&store.Change{Document: store.Document{Kind: channel, ID: k.id, Version: 9, Removed: true}}, time.Now())
	s.opts.Feed.Fail(store.ErrGone)
	s.takeRounds()
	s.putListed(
		slotLoad{epoch: s.lastEpoch},
		[]listedDocument{{key: k, slot: slotOf(k.id), change: Change{Version: 3, Generation: 1,
			Round: 1}, unsent: true}},
		Routine,
	)
	if r := s.table.all[k]; r == nil || r.Version != 3 || r.Unsent == 0 {
		t.Errorf("the table does not have the document: %+v", r)
	}
}
