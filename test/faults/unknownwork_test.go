package faults

import (
	"testing"
	"time"

	"atoll.dev/pki"
)

// TestI8AnUnreportedWorkIsFoundAgain: all messages of a restarted agent are lost, and so is the
// servers' database, with the request to delete the agent's only work. No server sends a request to
// the agent. The agent repeats its messages by itself, so the servers list the work as unknown and
// an operator can delete it.
func TestI8AnUnreportedWorkIsFoundAgain(t *testing.T) {
	w := newWorld(t, 1, time.Second)
	w.apply(0, "w0-0", "v")
	w.awaitRequestedWorks(0, nil)
	w.agents[0].Kill()
	w.requestDeletion(0, "w0-0")
	w.wipeDatabase()
	w.wire.set(faults{lose: 1000})
	agent := pki.Name(consumer(0))
	before := w.wire.count(agent, upstream)
	w.agents[0].Start()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	// Two unanswered messages with digests, and the list for servers without digests.
	for begun := time.Now(); w.wire.count(agent, upstream) < before+3; <-tick.C {
		if time.Since(begun) > recoveryTimeout {
			t.Fatal("the agent sends nothing")
		}
	}
	w.wire.set(faults{})
	w.awaitRequestedWorks(1, nil)
}
