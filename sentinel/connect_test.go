package sentinel

import (
	"testing"
	"time"

	"atoll.dev/store"
)

// Events without a subscriber are sent when an adapter connects, and not only after the back-off of an
// hour: a requested event of a reconciled resource, and the event of a kind without reports.
func TestI6AConnectingAdapterReceivesUndeliveredEvents(t *testing.T) {
	w := newWorld(t)
	r := w.start("one", func(o *Options) { o.Policy.MinRetry, o.Policy.MaxRetry = time.Hour, time.Hour })
	w.create(cluster, "c1", nil)
	w.report("c1", "True", "all have reported", time.Now())
	ask := func(id string) {
		t.Helper()
		_, err := w.store.Create(t.Context(), store.Document{Kind: requests, ID: id,
			Spec: []byte(`{"kind":"Cluster","id":"c1"}`), Status: []byte("{}")})
		must(t, 0, err)
	}
	ask("r1")
	w.create(channel, "stable", nil)
	state := func(k store.Kind, id string) State {
		return inside(r, func() State {
			if s := r.table.all[key{k, id}]; s != nil {
				return s.State
			}
			return State{}
		})
	}
	w.wait("both events had no subscriber", func() bool {
		c, ch := state(cluster, "c1"), state(channel, "stable")
		return c.Requested && c.Attempts > 0 && !c.Sending && ch.Attempts > 0 && !ch.Sending && ch.Published == 0
	})
	a := w.adapter("cl", "clusters")
	a.waitForEvent("c1", 1)
	w.adapter("ch", "channels").waitForEvent("stable", 1)
	w.wait("no event is pending", func() bool {
		return !isPending(state(cluster, "c1")) && !isPending(
			state(channel, "stable"))
	})

	// An adapter that connects later receives the requested event, too.
	ask("r2")
	a.waitForEvent("c1", 1)
	w.adapter("late", "clusters").waitForEvent("c1", 1)
}
