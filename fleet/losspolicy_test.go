package fleet

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/internal/pgtest"
)

// viewsOf returns the management clusters of a text such as "a+ b- c? (d-)": connected, reported as lost, and without a
// report that is young enough. In parentheses it is cordoned, "b-0" is empty, and "b-0r" is so since a recovery.
func viewsOf(text string) (all []agentView) {
	for _, word := range strings.Fields(text) {
		inner := strings.Trim(word, "()")
		all = append(all, agentView{id: cluster.ManagementClusterID(inner[:1]), isReady: inner == word,
			isConnected: inner[1] == '+', isLost: inner[1] == '-', isEmpty: strings.Contains(inner, "0"),
			hasRecovered: strings.HasSuffix(inner, "r")})
	}
	return all
}

func TestI9WhichManagementClustersAreGivenUp(t *testing.T) {
	for _, c := range []struct{ name, steps, want string }{ // each step is one minute after the one before
		{"after five minutes", "a+ b- | a+ b- | a+ b- | a+ b- | a+ b- | a+ b-", "b"},
		{"not before", "a+ b- | a+ b- | a+ b- | a+ b- | a+ b-", ""},
		{"it was connected for a moment", "a+ b- | a+ b- | a+ b+ | a+ b- | a+ b- | a+ b-", ""},
		{"the only one", "a- | a- | a- | a- | a- | a-", "suspect"},
		{"all", "a- b- | a- b- | a- b- | a- b- | a- b- | a- b-", "suspect"},
		{"one is left, which is no quarter", "a+ b- c- | a+ b- c- | a+ b- c- | a+ b- c- | a+ b- c- | a+ b- c-", "suspect"},
		{"all were lost for a minute", "a+ b- | a+ b- | a- b- | a+ b- | a+ b- | a+ b-", ""},
		{"a cordoned one", "a+ (b-) | a+ (b-) | a+ (b-) | a+ (b-) | a+ (b-) | a+ (b-)", ""},
		{"it was cordoned for a minute", "a+ b- | a+ b- | a+ (b-) | a+ b- | a+ b- | a+ b-", ""},
		{"cordoned ones show that the region is connected", "(a+) b- | (a+) b- | (a+) b- | (a+) b- | (a+) b- | (a+) b-", "b"},
		{"without a young report", "a+ b? | a+ b? | a+ b? | a+ b? | a+ b? | a+ b?", ""},
		{"Maestro is away", "a+ b- c+ | a? b? c? | a? b? c? | a? b? c? | a? b? c? | a? b? c?", "suspect"},
		{"two were given up before", "a+ b-0r c-0r d- | a+ b-0r c-0r d- | a+ b-0r c-0r d- | a+ b-0r c-0r d- | " +
			"a+ b-0r c-0r d- | a+ b-0r c-0r d-", "d"},
		{"one is given up meanwhile", "a+ b- c+ | a+ b- c+ | a+ b- c+ | a+ b-r c+ | a+ b-0r c- | a+ b-0r c- | a+ b-0r c- | " +
			"a+ b-0r c- | a+ b-0r c- | a+ b-0r c-", "c"},
		{"only emptied ones are lost", "a+ b-0r c-0r | a+ b-0r c-0r | a+ b-0r c-0r | a+ b-0r c-0r | a+ b-0r c-0r", ""},
		{"only emptied ones exist", "a-0r b-0r | a-0r b-0r | a-0r b-0r | a-0r b-0r | a-0r b-0r | a-0r b-0r", ""},
		{"spare ones are cut off, too", "a- b+ c-0 d-0 | a- b+ c-0 d-0 | a- b+ c-0 d-0 | a- b+ c-0 d-0 | a- b+ c-0 d-0 | " +
			"a- b+ c-0 d-0", "suspect"},
		{"a spare one is lost", "a+ b-0 | a+ b-0 | a+ b-0 | a+ b-0 | a+ b-0 | a+ b-0", ""},
		{"only spare ones exist", "a-0 b-0 | a-0 b-0", "suspect"},
		{"an empty one shows that the region is connected", "a+0 b- | a+0 b- | a+0 b- | a+0 b- | a+0 b- | a+0 b-", "b"},
		{"an emptied one is back, and lost with another", "a+ b-0r c+ | a+ b+0r c+ | a+ b-r c- | a+ b-r c-", "suspect"},
		{"emptied ones do not make two a quarter", "a+ b- c- d-0r e-0r f-0r g-0r h-0r | " +
			"a+ b- c- d-0r e-0r f-0r g-0r h-0r", "suspect"},
		{"the first comes first", "a+ b- c+ d+ e+ f+ g+ h+ | a- b- c+ d+ e+ f+ g+ h+ | a- b- c+ d+ e+ f+ g+ h+ | " +
			"a- b- c+ d+ e+ f+ g+ h+ | a- b- c+ d+ e+ f+ g+ h+ | a- b- c+ d+ e+ f+ g+ h+ | a- b- c+ d+ e+ f+ g+ h+", "b a"},
	} {
		p, now := newLossPolicy(5*time.Minute), time.Now()
		var lost []cluster.ManagementClusterID
		why := suspicion("")
		for i, step := range strings.Split(c.steps, " | ") {
			lost, why = p.giveUp(viewsOf(step), now.Add(time.Duration(i)*time.Minute))
		}
		got := strings.Trim(fmt.Sprint(lost), "[]")
		if why != "" {
			got += "suspect"
		}
		checkEqual(t, c.name, got, c.want)
	}
}

// Whatever happened: a management cluster that is given up was Ready and reported as lost in each view of the whole
// time, and not empty, and in each of these views another was connected and few were not.
func TestI9OnlyWhatWasLostForTheWholeTimeIsGivenUp(t *testing.T) {
	const after = 5 * time.Minute
	type view struct {
		at  time.Time
		all []agentView
	}
	rapid.Check(t, func(t *rapid.T) {
		p, now := newLossPolicy(after), time.Now()
		n := rapid.IntRange(1, 9).Draw(t, "n")
		var views []view
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "seconds")) * time.Second)
			v := view{at: now}
			for i := range n {
				m := agentView{id: cluster.ManagementClusterID(fmt.Sprint(i)), isReady: true, isConnected: true,
					isEmpty: rapid.IntRange(0, 3).Draw(t, "empty") == 0, hasRecovered: rapid.Bool().Draw(t, "recovered")}
				if len(views) > 0 && rapid.IntRange(0, 9).Draw(t, "stays") > 0 {
					m = views[len(views)-1].all[i]
				} else if rapid.IntRange(0, 3).Draw(t, "lost") == 0 {
					m.isConnected, m.isLost = false, rapid.IntRange(0, 5).Draw(t, "report") > 0
					m.isReady = rapid.IntRange(0, 5).Draw(t, "ready") > 0
				}
				v.all = append(v.all, m)
			}
			views = append(views, v)
			lost, _ := p.giveUp(v.all, now)
			for _, id := range lost {
				covered := false
				for _, v := range slices.Backward(views) {
					ready, silent, connected := 0, 0, 0
					for _, m := range v.all {
						if m.isConnected {
							connected++
						}
						if m.isReady && (m.isConnected || !m.isEmpty || !m.hasRecovered) {
							ready++
							if !m.isConnected {
								silent++
							}
						}
						if m.id == id && (!m.isReady || !m.isLost || m.isEmpty) {
							t.Fatalf("%s is given up at %s, and at %s it was not lost, or empty", id, now, v.at)
						}
					}
					if connected == 0 || silent > 1 && silent > ready/4 {
						t.Fatalf("%s is given up at %s, and at %s %d of %d were silent", id, now, v.at, silent, ready)
					}
					if covered = now.Sub(v.at) >= after; covered {
						break
					}
				}
				if !covered {
					t.Fatalf("%s is given up at %s, too early", id, now)
				}
			}
		}
	})
}

// Two processes apply the policy. The plane of each cluster with a backup is recovered once; a cluster without one
// stays, and is tried again later.
func TestI9I1ALostManagementClusterIsGivenUpAfterATime(t *testing.T) {
	dsn := pgtest.DSN(t)
	b, other := startOn(t, dsn, Options{}), startOn(t, dsn, Options{})
	one := cluster.ManagementClusterID(b.mc("one", `{"capacity":{"planes":10}}`, nil))
	var ids []string
	for i := range 7 {
		ids = append(ids, b.cluster(fmt.Sprint("c-", i), `{}`))
		b.place(ids[i])
	}
	slices.Sort(ids)
	for _, id := range ids[1:] {
		b.reportPlane(id, "True", `{"backups":{"from":"2026-11-29T10:00:00Z"}}`)
	}
	two := cluster.ManagementClusterID(b.mc("two", `{"capacity":{"planes":20}}`, nil))
	b.reportLost(string(one))
	see := func(what string, holds func(inv *inventory) bool) {
		t.Helper()
		for _, r := range []*testRegion{b, other} {
			r.eventually("both processes see "+what, func() (is bool) {
				r.fleet.shared.use(func(inv *inventory) { is = holds(inv) })
				return is
			})
		}
	}
	see("the loss and all placements", func(inv *inventory) bool {
		on := inv.recoverable([]cluster.ManagementClusterID{one})
		return inv.lost[one] && inv.isConnected(two, time.Now()) && len(on[one]) == 7
	})
	now := time.Now()
	const after = 100 * time.Second // the connected one's report is young enough in all passes
	mine, others := newLossPolicy(after), newLossPolicy(after)
	pass := func(at time.Time) {
		t.Helper()
		done := make(chan struct{})
		go func() {
			defer close(done)
			other.fleet.recoverLost(t.Context(), others, at)
		}()
		b.fleet.recoverLost(t.Context(), mine, at)
		<-done
		for _, r := range []*testRegion{b, other} {
			checkEqual(t, "the gauge of paused recoveries", testutil.ToFloat64(r.fleet.metrics.paused), 0)
		}
	}
	count := func(phase api.MovePhase) (n int) {
		for _, id := range ids {
			if m := b.place(id).Move; m != nil && m.Phase == phase {
				n++
			}
		}
		return n
	}
	pass(now)
	pass(now.Add(after - time.Second))
	checkEqual(t, "recoveries before the time", count(api.Recovering), 0)
	pass(now.Add(after))
	checkEqual(t, "recoveries at once", count(api.Recovering), maxRecoveries)
	if b.place(ids[0]).Move != nil {
		t.Fatal("a cluster without a backup is recovered")
	}
	running := func(n int) func(inv *inventory) bool {
		return func(inv *inventory) bool { return len(inv.recovering) == n }
	}
	see("the recoveries", running(maxRecoveries))
	pass(now.Add(after + 10*time.Second))
	checkEqual(t, "recoveries while four run", count(api.Recovering), maxRecoveries)
	for _, id := range ids {
		if m := b.place(id).Move; m != nil {
			b.move(id, api.MoveOrder{Step: api.Arrived, ID: m.ID})
		}
	}
	see("that they have ended", running(0))
	pass(now.Add(after + 20*time.Second))
	checkEqual(t, "recoveries after four have ended", count(api.Recovering), 2)
	checkEqual(t, "planes on their new management cluster", count(api.Ending), maxRecoveries)
	began := testutil.ToFloat64(b.fleet.metrics.recovered) + testutil.ToFloat64(other.fleet.metrics.recovered)
	checkEqual(t, "recoveries that the two processes count", began, 6)

	b.reportConnected(string(one))
	see("its end", func(inv *inventory) bool { return !inv.lost[one] })
	b.reportPlane(ids[0], "True", `{"backups":{"from":"2026-11-29T10:00:00Z"}}`)
	pass(now.Add(after + 30*time.Second))
	if b.place(ids[0]).Move != nil {
		t.Fatal("a cluster of a connected management cluster is recovered")
	}
}

// lockedBuffer is a log that a test reads while others write it.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Two management clusters are lost, and their clusters were recovered before this process started. A third is lost
// together with a spare one: the policy pauses. When the spare one is back, the policy recovers the cluster of the
// third. Then the last ones are lost, too: the policy says every ten minutes that it recovers nothing.
func TestI9EmptiedManagementClustersDoNotStopThePolicy(t *testing.T) {
	log := &lockedBuffer{}
	logger := slog.New(slog.NewTextHandler(io.MultiWriter(log, t.Output()), nil))
	dsn := pgtest.DSN(t)
	b := startOn(t, dsn, Options{})
	placeOn := func(mc, name string) (mcID, id string) { // on the only one with room that is connected
		mcID, id = b.mc(mc, `{"capacity":{"planes":1}}`, nil), b.cluster(name, `{}`)
		b.place(id)
		b.reportPlane(id, "True", `{"backups":{"from":"2026-11-29T10:00:00Z"}}`)
		return mcID, id
	}
	first, a := placeOn("first", "a")
	second, c := placeOn("second", "c")
	third, id := placeOn("third", "shop")
	last, spare := b.mc("last", `{"capacity":{"planes":3}}`, nil), b.mc("spare", `{"capacity":{"planes":0}}`, nil)
	b.reportLost(first)
	b.reportLost(second)
	for _, id := range []string{a, c} {
		b.move(id, api.MoveOrder{Step: api.Recover, ID: "m1"})
		checkEqual(t, "a recovery", b.move(id, api.MoveOrder{Step: api.Arrived, ID: "m1"}), "Ending to last, placed on last")
	}
	b.end()
	b = startOn(t, dsn, Options{Logger: logger})
	b.reportConnected(last)
	b.reportLost(spare)
	b.reportLost(third)
	b.eventually("fleet sees the placement", func() (is bool) {
		b.fleet.shared.use(func(inv *inventory) {
			on := inv.recoverable([]cluster.ManagementClusterID{cluster.ManagementClusterID(third)})
			is = len(on) == 1 && inv.lost[cluster.ManagementClusterID(first)] && inv.lost[cluster.ManagementClusterID(second)]
		})
		return is
	})
	p, now := newLossPolicy(20*time.Second), time.Now()
	for range 3 {
		b.fleet.recoverLost(t.Context(), p, now)
		checkEqual(t, "the gauge while the spare one is lost, too", testutil.ToFloat64(b.fleet.metrics.paused), 1)
		now = now.Add(10 * time.Second)
	}
	b.reportConnected(spare)
	for range 3 {
		b.fleet.recoverLost(t.Context(), p, now)
		now = now.Add(10 * time.Second)
	}
	m := b.place(id).Move
	if m == nil || m.Phase != api.Recovering {
		t.Fatalf("the cluster has the move %+v, want its recovery", m)
	}
	checkEqual(t, "the gauge while one is connected", testutil.ToFloat64(b.fleet.metrics.paused), 0)
	checkEqual(t, "warnings while one is connected", strings.Count(log.String(), string(noneConnected)), 0)

	b.reportLost(last)
	b.reportLost(spare)
	p = newLossPolicy(time.Minute) // it has warned of nothing
	for at := now; at.Before(now.Add(2*warnSuspicionEvery + time.Second)); at = at.Add(checkLossesEvery) {
		b.fleet.recoverLost(t.Context(), p, at)
	}
	checkEqual(t, "the gauge while none is connected", testutil.ToFloat64(b.fleet.metrics.paused), 1)
	checkEqual(t, "warnings in 20 minutes", strings.Count(log.String(), string(noneConnected)), 3)
}

// Clusters that lose the race for room are tried again in the next pass. One without a backup, or without room
// anywhere, is left alone for a time.
func TestI9ARecoveryThatLostARaceForRoomIsTriedAgainSoon(t *testing.T) {
	b := start(t)
	one := cluster.ManagementClusterID(b.mc("one", `{"capacity":{"planes":10}}`, nil))
	ids := []string{b.cluster("a", `{}`), b.cluster("b", `{}`)}
	without := b.cluster("without", `{}`)
	for _, id := range append(ids, without) {
		b.place(id)
	}
	for _, id := range ids {
		b.reportPlane(id, "True", `{"backups":{"from":"2026-11-29T10:00:00Z"}}`)
	}
	two := b.mc("two", `{"capacity":{"planes":0}}`, nil)
	b.reportLost(string(one))
	see := func(what string, holds func(inv *inventory) bool) {
		t.Helper()
		b.eventually("fleet sees "+what, func() (is bool) {
			b.fleet.shared.use(func(inv *inventory) { is = holds(inv) })
			return is
		})
	}
	capacity := func(inv *inventory) Amounts { return inv.mcs[cluster.ManagementClusterID(two)].m.Capacity }
	see("the loss, the target and the placements", func(inv *inventory) bool {
		on := inv.recoverable([]cluster.ManagementClusterID{one})
		return inv.lost[one] && capacity(inv) != nil && len(on[one]) == 3
	})
	p, now := newLossPolicy(time.Minute), time.Now()
	pass := func(at time.Time) (recovered, waiting int) {
		b.fleet.recoverLost(t.Context(), p, at)
		for _, id := range ids {
			if _, waits := p.retryAt[cluster.ID(id)]; waits {
				waiting++
			}
			if m := b.place(id).Move; m != nil && m.Phase == api.Recovering {
				recovered++
			}
		}
		return recovered, waiting
	}
	pass(now)
	// Only the copy in memory has room. So the transaction refuses each choice, as when others take the room each time.
	b.fleet.shared.use(func(inv *inventory) {
		m := inv.mcs[cluster.ManagementClusterID(two)]
		m.m.Capacity = Amounts{"planes": 5}
		inv.mcs[cluster.ManagementClusterID(two)] = m
	})
	now = now.Add(time.Minute)
	recovered, waiting := pass(now)
	checkEqual(t, "recovered clusters while others take the room", recovered, 0)
	checkEqual(t, "clusters that the next pass leaves alone", waiting, 0)
	checkEqual(t, "the next attempt without a backup", p.retryAt[cluster.ID(without)], now.Add(retryRecovery))

	enlarged := json.RawMessage(`{"spec":{"capacity":{"planes":1}}}`)
	if _, err := b.Merge(t.Context(), mcsPath, two, enlarged, ""); err != nil {
		t.Fatal(err)
	}
	see("the new capacity", func(inv *inventory) bool { return capacity(inv)["planes"] == 1 })
	now = now.Add(checkLossesEvery)
	recovered, waiting = pass(now)
	checkEqual(t, "recovered clusters with room for one", recovered, 1)
	checkEqual(t, "clusters without room, which the next pass leaves alone", waiting, 1)
}
