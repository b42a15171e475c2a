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

// What is kept of 50,000 resources, reckoned without a database.
func TestWhatIsKeptOf50000ResourcesIsSmall(t *testing.T) {
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
		r := table.get(key{cluster, id}, slotOf(id))
		table.put(r, policy.ApplyChange(r.State, Change{Version: 1, Generation: 1, Mark: uint64(i), Round: 1}, now))
	}
	grown := heap() - before
	t.Logf("%d bytes for each", grown/50_000)
	if grown > 60<<20 {
		t.Errorf("it takes %d MiB", grown>>20)
	}
	for len(table.urgent) > 0 {
		table.drop(table.urgent[0])
	}
	if len(table.all)+len(table.owing)+len(table.routine) > 0 || table.count(cluster).pending != 0 {
		t.Error("something is left")
	}
}

// A fleet of the size that ATOLL_SENTINEL_FLEET says, half of it stuck, and how
// long it takes from a commit to the event at an adapter while it is there.
// Without the variable the fleet is small, and only that all comes is checked.
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
	heard1 := make(map[string]time.Time)
	stuck := map[string]bool{}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for len(heard1) < creates {
			select {
			case h := <-a.events:
				if strings.HasPrefix(h.Data.ID, "fleet-") {
					stuck[h.Data.ID] = true
				} else if heard1[h.Data.ID].IsZero() {
					heard1[h.Data.ID] = h.At
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
	if len(heard1) < creates {
		t.Fatalf("%d events of %d came", len(heard1), creates)
	}
	var delays []time.Duration
	for id, at := range committed {
		delays = append(delays, max(heard1[id].Sub(at), 0))
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
