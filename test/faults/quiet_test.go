package faults

import (
	"fmt"
	"testing"
	"time"

	"atoll.dev/pki"
)

// TestARestartWithoutChangeCostsFewMessages: a killed agent that restarts without any change costs
// at most two messages each way, and then none for seconds. A restart of one of two servers costs
// twice that: the restarted server and the other one each send a request.
func TestARestartWithoutChangeCostsFewMessages(t *testing.T) {
	w := newWorld(t, 1, 0)
	for n := range clusters {
		for i := range 40 {
			w.apply(n, fmt.Sprintf("w%d-%d", n, i), "v")
		}
	}
	w.awaitRequestedWorks(0, nil)
	agent := pki.Name(consumer(0))
	// settled waits until the agent has sent more than before, and then until no message has passed for three seconds,
	// longer than any retry. It returns the messages.
	settled := func(before int) (up, down int, after time.Duration) {
		t.Helper()
		begun, last := time.Now(), time.Now()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for up <= before || time.Since(last) < 3*time.Second {
			<-tick.C
			if u, d := w.wire.count(agent, upstream), w.wire.count(agent, downstream); u != up || d != down {
				up, down, last = u, d, time.Now()
			}
			if time.Since(begun) > recoveryTimeout {
				t.Fatalf("it does not become quiet, after %d messages from the agent", up-before)
			}
		}
		return up, down, last.Sub(begun)
	}
	upBefore, downBefore, _ := settled(0)
	// An answer that a slow machine gives after seconds is requested again, which costs further messages. So the cost
	// is the least of some restarts.
	cost := func(what string, most int, restart func()) {
		t.Helper()
		for tries := 5; ; tries-- {
			restart()
			up, down, after := settled(upBefore)
			said := fmt.Sprintf("%s: %d messages from the agent, %d to it, the last after %v", what, up-upBefore,
				down-downBefore, after.Round(time.Millisecond))
			isCheap := up-upBefore <= most && down-downBefore <= most && (after <= 2*time.Second || most > 2)
			upBefore, downBefore = up, down
			t.Log(said)
			switch {
			case isCheap:
				return
			case tries == 0:
				t.Error(said)
				return
			}
		}
	}
	cost("the agent is killed and starts", 2, func() { w.agents[0].Kill(); w.agents[0].Start() })
	cost("a server is killed and starts", 4, func() { w.servers[0].Kill(); w.servers[0].Start() })
}
