package sentinel

import (
	"testing"
	"time"

	"atoll.dev/bus"
	"atoll.dev/store"
)

// A document that changed while it was read is read again: what the rules say of
// the old one says nothing of the new one.
func TestADocumentThatChangesWhileItIsReadIsReadAgain(t *testing.T) {
	w := newWorld(t)
	st := w.open()
	s, err := New(t.Context(), Options{Store: st, Feed: st.NewBroadcast(nil), Kinds: []Kind{{channel, "channels"}}, Bus: w.client("clm", bus.ClientOptions{})})
	must(t, 0, err)
	s.up = true
	k := key{channel, "ch"}
	now := time.Now()
	slot := slotOf(k.id)
	s.slots[slot].epoch, s.slots[slot].ready = 1, true
	old := w.create(channel, k.id, nil)
	r := s.table.get(k, slot)
	s.table.put(r, s.policy.Found(r.State, Change{Version: 1, Generation: 1}, false, false, After{}, now))
	s.table.put(r, s.policy.Asked(r.State, true, true, 1, now))
	s.table.put(r, func() State { x := r.State; x.Forced = false; return x }())
	s.work(t.Context(), now) // begins to read it
	<-s.read
	w.change(channel, k.id, 1)
	changed, err := st.Get(t.Context(), channel, k.id)
	must(t, 0, err)
	s.round = 7
	s.changed(&store.Change{Document: changed}, now)
	s.table.release(r) // there was no room to keep it
	s.wasRead(t.Context(), []key{k}, map[key]*store.Document{k: &old}, nil)
	if r.Owed == 0 || r.queue == nil || len(s.out) != 0 {
		t.Fatalf("it is taken for told: %+v", r.State)
	}
	s.work(t.Context(), now)
	<-s.read
	s.wasRead(t.Context(), []key{k}, map[key]*store.Document{k: &changed}, nil)
	if !r.Sending || len(s.out) != 1 {
		t.Fatalf("it is not sent: %+v", r.State)
	}
}
