package fleet

import (
	"testing"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
)

func TestASlowRecoveryDoesNotStopOthers(t *testing.T) {
	p, now := newLossPolicy(time.Hour), time.Now()
	four := []cluster.ID{"a", "b", "c", "d"}
	checkEqual(t, "free beside three", p.countStartable(four[:3], now), 1)
	checkEqual(t, "free beside four", p.countStartable(four, now.Add(time.Minute)), 0)
	checkEqual(t, "free beside three slow ones", p.countStartable(four, now.Add(slowRecovery)), 3)
	checkEqual(t, "free in the end", p.countStartable(nil, now.Add(slowRecovery)), 4)
	checkEqual(t, "remembered recoveries", len(p.runningSince), 0)
}

// An operator recovers a cluster while nothing is given up. The policy sees when that begins and when it ends: the
// cluster's next recovery, days later, is not a slow one at once.
func TestAPassWithoutALossForgetsRecoveriesThatHaveEnded(t *testing.T) {
	b := start(t)
	one, id := b.mc("one", `{"capacity":{"planes":1}}`, nil), b.cluster("shop", `{}`)
	b.place(id)
	b.mc("two", `{"capacity":{"planes":1}}`, nil)
	b.reportLost(one)
	p, now := newLossPolicy(time.Hour), time.Now()
	pass := func(at time.Time, running int) {
		t.Helper()
		b.eventually("fleet sees the running recoveries", func() (is bool) {
			b.fleet.shared.use(func(inv *inventory) { is = len(inv.recovering) == running })
			return is
		})
		b.fleet.recoverLost(t.Context(), p, at)
	}
	b.move(id, api.MoveOrder{Step: api.Recover, ID: "m1"})
	pass(now, 1)
	checkEqual(t, "when it was first seen", p.runningSince[cluster.ID(id)], now)
	pass(now.Add(time.Minute), 1)
	checkEqual(t, "when it was first seen, a minute later", p.runningSince[cluster.ID(id)], now)
	b.move(id, api.MoveOrder{Step: api.Arrived, ID: "m1"})
	pass(now.Add(2*time.Minute), 0)
	checkEqual(t, "remembered recoveries", len(p.runningSince), 0)
}
