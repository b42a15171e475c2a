package dispatch

import (
	"testing"

	"pgregory.net/rapid"
)

// TestDivide: however servers come and go, and in whatever order they look, no
// slot is taken from a server that lives, each slot comes to have one holder that
// lives, and a server that goes moves its own slots only.
func TestDivide(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		holders := make([]int64, Slots)
		live := []int64{}
		next := int64(1)
		look := func(me int64) {
			give, take := divide(me, live, holders)
			for _, slot := range give {
				if holders[slot] != me {
					rt.Fatalf("%d gives slot %d of %d", me, slot, holders[slot])
				}
				holders[slot] = 0
			}
			for _, slot := range take {
				for _, other := range live {
					if holders[slot] == other {
						rt.Fatalf("%d takes slot %d from %d, which lives", me, slot, other)
					}
				}
				holders[slot] = me
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"come": func(*rapid.T) { live = append(live, next*7919); next++ },
			"go": func(rt *rapid.T) {
				if len(live) > 0 {
					i := rapid.IntRange(0, len(live)-1).Draw(rt, "which")
					live = append(live[:i:i], live[i+1:]...)
				}
			},
			"look": func(rt *rapid.T) {
				if len(live) > 0 {
					look(rapid.SampledFrom(live).Draw(rt, "who"))
				}
			},
		})
		if len(live) == 0 {
			return
		}
		for range 2 {
			for _, me := range live {
				look(me)
			}
		}
		for slot, holder := range holders {
			if holder != wantedHolder(slot, live) {
				rt.Fatalf("slot %d is with %d", slot, holder)
			}
		}
		if len(live) < 2 {
			return
		}
		gone, rest := live[0], live[1:]
		for slot, holder := range holders {
			if now := wantedHolder(slot, rest); now != holder && holder != gone {
				rt.Fatalf("slot %d moves from %d to %d because %d went", slot, holder, now, gone)
			}
		}
	})
}
