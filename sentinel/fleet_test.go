package sentinel

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"atoll.dev/store"
)

// The table of 50,000 resources needs at most 60 MiB.
func TestATableOf50000ResourcesIsSmall(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	table := newTable()
	policy := Policy{}.withDefaults()
	now := time.Unix(1_800_000_000, 0)
	for i := range 50_000 {
		id := fmt.Sprintf("0199a0b1-%012d-of-a-length-of-36", i)
		r := table.getOrAdd(key{cluster, id}, slotOf(id))
		table.setState(
			r,
			policy.ApplyChange(r.State, Change{Version: 1, Generation: 1, ProgressHash: uint64(i), Round: 1}, now),
		)
	}
	grown := heap() - before
	t.Logf("%d bytes for each", grown/50_000)
	if grown > 60<<20 {
		t.Errorf("the table needs %d MiB", grown>>20)
	}
	for len(table.urgent) > 0 {
		table.remove(table.urgent[0])
	}
	if len(table.all)+len(table.unsent)+len(table.routine) > 0 || table.count(cluster).pending != 0 {
		t.Error("the empty table has resources")
	}
}

// TestAFleet measures the time from a commit to the event at an adapter, in a fleet of
// ATOLL_SENTINEL_FLEET clusters of which half are unreconciled. Without the variable the fleet is
// small, and the test only checks that all events arrive.
func TestAFleet(t *testing.T) {
	size, creates := 400, 50
	if text := os.Getenv("ATOLL_SENTINEL_FLEET"); text != "" {
		n, err := strconv.Atoi(text)
		size, creates = must(t, n, err), 1000
	}
	w := newWorld(t)
	var makers sync.WaitGroup
	for part := range 8 {
		makers.Go(func() {
			for i := part; i < size; i += 8 {
				status := reconciled("True", 1, "all is well", time.Now().UTC())
				if i%2 == 0 {
					status = reconciled("False", 1, "it is stuck", time.Now().UTC())
				}
				spec := testSpec{nil, map[string]any{"text": strings.Repeat("x", 1000)}}
				if _, err := w.store.Create(t.Context(), store.Document{Kind: cluster, ID: fmt.Sprintf("fleet-%06d", i),
					Spec: encoded(t, spec), Status: encoded(t, status)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	makers.Wait()
	a := w.adapter("cl", "clusters")
	begun := time.Now()
	r := w.start("one")
	t.Logf("%d clusters were read in %s", size, time.Since(begun).Round(time.Millisecond))
	receivedAt := make(map[string]time.Time)
	stuck := map[string]bool{}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for len(receivedAt) < creates {
			select {
			case h := <-a.events:
				if strings.HasPrefix(h.Data.ID, "fleet-") {
					stuck[h.Data.ID] = true
				} else if receivedAt[h.Data.ID].IsZero() {
					receivedAt[h.Data.ID] = h.At
				}
			case <-t.Context().Done():
				return
			case <-time.After(3 * time.Minute):
				return
			}
		}
	}()
	committed := map[string]time.Time{}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := range creates {
		<-tick.C
		id := fmt.Sprintf("new-%d", i)
		w.create(cluster, id, nil)
		committed[id] = time.Now()
	}
	<-finished
	if len(receivedAt) < creates {
		t.Fatalf("%d events of %d came", len(receivedAt), creates)
	}
	var delays []time.Duration
	for id, at := range committed {
		delays = append(delays, max(receivedAt[id].Sub(at), 0))
	}
	slices.Sort(delays)
	part := func(p int) time.Duration {
		return delays[min(len(delays)*p/100, len(delays)-1)].Round(100 * time.Microsecond)
	}
	t.Logf("commit to event at the adapter: p50 %s, p90 %s, p99 %s, most %s", part(50), part(90), part(99), part(100))
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Logf("heap %d MiB with broker, adapter and test; %d of the fleet had events meanwhile", m.HeapAlloc>>20,
		len(stuck))
	if n := inside(r, func() int { return len(r.table.all) }); n != size+creates {
		t.Errorf("it has %d resources", n)
	}
}
