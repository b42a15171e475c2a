package faults

import (
	"testing"
	"time"

	"atoll.dev/pki"
)

// TestI8WhatNoServerHeardIsFoundAgain: what an agent says after its start is
// lost, and so is the servers' database, with the order to delete the agent's
// only work. Nobody has a reason to ask the agent any more. It asks again by
// itself, so the work is known as unknown, and an operator can have it deleted.
func TestI8WhatNoServerHeardIsFoundAgain(t *testing.T) {
	w := newWorld(t, 1, time.Second)
	w.apply(0, "w0-0", "v", true)
	w.compare(0, nil)
	w.agents[0].kill()
	w.remove(0, "w0-0")
	w.wipe()
	w.wire.set(faults{lose: 1000})
	agent := pki.Name(consumer(0))
	before := w.wire.count(agent, true)
	w.agents[0].start()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	// Digests that nobody answers, and the list for a server that answers none.
	for begun := time.Now(); w.wire.count(agent, true) < before+3; <-tick.C {
		if time.Since(begun) > calm {
			t.Fatal("the agent says nothing")
		}
	}
	w.wire.set(faults{})
	w.compare(1, nil)
}
