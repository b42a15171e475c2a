package sentinel

import (
	"testing"
	"time"

	"atoll.dev/store"
)

// What nobody heard is said when somebody is there: what was asked for although
// a resource is reconciled, and what no report would ever show to be missing.
// With back-off alone that would be in an hour.
func TestI6WhatNobodyHeardIsSaidToWhoComes(t *testing.T) {
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
	w.wait("both were said to nobody", func() bool {
		c, ch := state(cluster, "c1"), state(channel, "stable")
		return c.Forced && c.Attempts > 0 && !c.Sending && ch.Attempts > 0 && !ch.Sending && ch.Published == 0
	})
	a := w.adapter("cl", "clusters")
	a.of("c1", 1)
	w.adapter("ch", "channels").of("stable", 1)
	w.wait("nothing is owed any more", func() bool {
		return !pending(state(cluster, "c1")) && !pending(
			state(channel, "stable"))
	})

	// An adapter that was away while others received the event gets it, too.
	ask("r2")
	a.of("c1", 1)
	w.adapter("late", "clusters").of("c1", 1)
}
