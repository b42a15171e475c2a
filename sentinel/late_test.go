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
	s.up = true
	k := key{channel, "ch"}
	now := time.Now()
	slot := slotOf(k.id)
	s.slots[slot].epoch, s.slots[slot].ready = 1, true
	old := w.create(channel, k.id, nil)
	r := s.table.get(k, slot)
	s.table.put(r, s.policy.ApplyListed(r.State, Change{Version: 1, Generation: 1}, After{}, now))
	s.table.put(r, s.policy.ApplyRequest(r.State, Urgent, 1, now))
	s.table.put(r, func() State { x := r.State; x.Forced = false; return x }())
	s.decideDue(t.Context(), now) // begins to read it
	<-s.read
	w.change(channel, k.id, 1)
	changed, err := st.Get(t.Context(), channel, k.id)
	must(t, 0, err)
	s.round = 7
	s.applyChange(&store.Change{Document: changed}, now)
	s.table.release(r) // there was no room to keep it
	s.decideRead(t.Context(), []key{k}, map[key]*store.Document{k: &old}, nil)
	if r.Unsent == 0 || r.queue == nil || len(s.out) != 0 {
		t.Fatalf("the event counts as sent: %+v", r.State)
	}
	s.decideDue(t.Context(), now)
	<-s.read
	s.decideRead(t.Context(), []key{k}, map[key]*store.Document{k: &changed}, nil)
	if !r.Sending || len(s.out) != 1 {
		t.Fatalf("it is not sent: %+v", r.State)
	}
}

// still returns a sentinel whose loop does not run, and that holds a slot.
func (w *world) still(id string) (*Sentinel, key) {
	w.t.Helper()
	st := w.open()
	s, err := New(w.t.Context(), Options{Store: st, Feed: st.NewBroadcast(nil),
		Kinds: []Kind{{channel, "channels", ""}}, Bus: w.client("clm", bus.ClientOptions{})})
	must(w.t, 0, err)
	s.up = true
	slot := slotOf(id)
	s.slots[slot].epoch, s.slots[slot].ready = 1, true
	return s, key{channel, id}
}

// A decision that the end of the process interrupts has not failed: the next holder of
// the slot finds the event unsent.
func TestADecisionThatIsInterruptedOwesItsEvent(t *testing.T) {
	w := newWorld(t)
	s, k := w.still("ch")
	doc := w.create(channel, k.id, nil)
	now := time.Now()
	s.round = 7
	s.applyChange(&store.Change{Document: doc}, now)
	r := s.table.all[k]
	ended, end := context.WithCancel(t.Context())
	end()
	s.decide(ended, r, &doc, now)
	if r.Unsent != 7 || r.Sending {
		t.Errorf("it is no longer owed: %+v", r.State)
	}
	s.decide(t.Context(), r, &doc, now)
	if !r.Sending {
		t.Errorf("it is not sent: %+v", r.State)
	}
}

// What waits for the reader takes nothing of the pace, however often the loop
// looks at it.
func TestWhatWaitsForTheReaderTakesNoPace(t *testing.T) {
	w := newWorld(t)
	s, k := w.still("ch")
	now := time.Now()
	change := Change{Version: 1, Generation: 1}
	s.table.put(s.table.get(k, slotOf(k.id)), s.policy.ApplyListed(State{}, change, After{Wanted: true},
		now))
	s.reading = true
	before := s.pace.TokensAt(now)
	for range 10 {
		s.decideDue(t.Context(), now)
	}
	if after := s.pace.TokensAt(now); after != before {
		t.Errorf("of %v tokens %v are left", before, after)
	}
	s.reading = false
	s.decideDue(t.Context(), now)
	if got := <-s.read; len(got) != 1 || got[0] != k || s.pace.TokensAt(now) >= before {
		t.Errorf("it reads %v, and %v tokens are left", got, s.pace.TokensAt(now))
	}
}

// When the database was put back, what was removed in its other life is there
// again, at an older version.
func TestWhatComesBackWithAnotherLifeIsFound(t *testing.T) {
	w := newWorld(t)
	s, k := w.still("ch")
	s.start = func(func(context.Context)) {}
	s.sub = s.opts.Feed.Subscribe(s.isRelevant)
	defer func() { s.sub.Close() }()
	s.slots[slotOf(k.id)].ready = false
	s.applyChange(&store.Change{Document: store.Document{Kind: channel, ID: k.id, Version: 9, Removed: true}}, time.Now())
	s.opts.Feed.Fail(store.ErrGone)
	s.takeRounds()
	s.putListed(load{epoch: s.epoch}, []listed{{key: k, slot: slotOf(k.id), change: Change{Version: 3, Generation: 1,
		Round: 1}, unseen: true}}, false)
	if r := s.table.all[k]; r == nil || r.Version != 3 || r.Unsent == 0 {
		t.Errorf("it is not found: %+v", r)
	}
}
