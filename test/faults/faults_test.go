package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/client/remote"
	"atoll.dev/internal/pgtest"
	"atoll.dev/test/testsite"
)

const (
	clusters = 3
	servers  = 2
	ids      = 12 // of each cluster
	source   = "faults"

	lightTime = 15 * time.Second
	// limit for convergence after the faults: two repetitions a minute apart, and more
	recoveryTimeout = 3 * time.Minute
)

// TestI6I7I8I12ClustersHoldTheRequestedWorks runs rounds of faults: two
// servers on one database, a broker, and three agents, each with a cluster of
// its own; every server and agent a process. While works are created, changed
// and deleted, messages are lost, doubled and reordered, connections cut,
// the broker restarted, processes killed, clocks stepped, an agent's store
// wiped, the servers' database wiped. Then the faults end, and each cluster
// must come to hold exactly the requested works; and no agent may ever delete an
// object whose deletion was not requested.
//
// Agents compare digests every five minutes, as in production, so a round must end by
// the mechanisms that repair losses earlier: acknowledgements, repetitions, an agent's
// records of deletions, and comparisons after a reconnect.
//
// The faults go on for 15 s, or for the duration in ATOLL_SOAK; ATOLL_SEED repeats the random
// choices of a run.
func TestI6I7I8I12ClustersHoldTheRequestedWorks(t *testing.T) {
	seed, span := testsite.Seed(t), testsite.Soak(t, lightTime)
	var w *world
	t.Cleanup(func() { // the last one, after the logs of all processes
		if t.Failed() && w != nil {
			t.Logf("seed %d; %s", seed, w.why)
		}
	})
	w = newWorld(t, seed, 0)
	end := time.Now().Add(span)
	for round := 1; time.Now().Before(end) && !t.Failed(); round++ {
		w.round(round)
	}
	t.Logf("%d changes requested; %d messages lost, %d doubled, %d delayed, %d connections cut; faults: %v",
		w.changes, w.wire.lost.Load(), w.wire.doubled.Load(), w.wire.delayed.Load(), w.wire.cut.Load(), w.counts)
}

// round changes works under faults, ends the faults, and compares the clusters.
func (w *world) round(round int) {
	w.wire.set(faults{lose: w.random.IntN(150), double: w.random.IntN(150), delay: w.random.IntN(300),
		cut: w.random.IntN(10)})
	var happened []string
	for range 4 + w.random.IntN(8) {
		for range w.random.IntN(12) {
			n := w.random.IntN(clusters)
			id := fmt.Sprintf("w%d-%d", n, w.random.IntN(ids))
			w.mu.Lock()
			_, there := w.requested[n][id]
			w.mu.Unlock()
			if there && w.random.IntN(4) == 0 {
				w.requestDeletion(n, id)
			} else {
				w.tryApply(n, id, fmt.Sprintf("r%d-%d", round, w.random.IntN(1000)))
			}
		}
		happened = append(happened, w.causeFault())
	}
	w.wire.set(faults{})
	for _, p := range slices.Concat(w.servers, w.agents) {
		if !p.Running() {
			p.Start()
		}
	}
	begun := time.Now()
	w.awaitRequestedWorks(round, happened)
	w.t.Logf("round %d: %s; as requested after %v", round, strings.Join(happened, ", "), time.Since(begun).Round(
		time.Millisecond))
}

// causeFault causes one random fault.
func (w *world) causeFault() string {
	what := ""
	switch w.random.IntN(12) {
	case 0, 1:
		n := w.random.IntN(servers)
		w.servers[n].Kill()
		w.servers[n].Start()
		what = "server killed"
	case 2, 3:
		n := w.random.IntN(clusters)
		w.agents[n].Kill()
		w.agents[n].Start()
		what = "agent killed"
	case 4:
		w.broker.Stop()
		w.broker.Start()
		what = "broker restarted"
	case 5:
		n := w.random.IntN(clusters)
		w.agents[n].Kill()
		if err := os.RemoveAll(w.agents[n].config.Store); err != nil {
			w.t.Fatal(err)
		}
		w.agents[n].Start()
		what = "agent wiped"
	case 6:
		w.wipeDatabase()
		what = "database wiped"
	case 7, 8:
		n := w.random.IntN(clusters)
		off := time.Duration(w.random.Int64N(int64(4*time.Hour))) - 2*time.Hour
		if err := os.WriteFile(w.agents[n].config.Wall, []byte(strconv.FormatInt(int64(off), 10)), 0o600); err != nil {
			w.t.Fatal(err)
		}
		what = "clock stepped"
	case 9:
		n := w.random.IntN(clusters)
		if w.agents[n].Running() {
			w.agents[n].Kill() // until the round ends, or it is killed again
		}
		what = "agent away"
	case 10:
		w.wire.cutConnections()
		what = "connections cut"
	default:
		what = "nothing"
	}
	w.counts[what]++
	return what
}

// wipeDatabase empties the servers' database. The source then requests its works again.
func (w *world) wipeDatabase() {
	dsn := pgtest.DSN(w.t)
	for _, p := range w.servers {
		p.Kill()
	}
	for _, p := range w.servers {
		p.config.DSN = dsn
		p.Start()
	}
	w.register()
	// Works that agents hold and the new database lacks are found when the agents connect, or
	// by their next comparison, which is minutes away.
	w.wire.cutConnections()
	for n := range clusters {
		w.mu.Lock()
		requested := maps.Clone(w.requested[n])
		w.mu.Unlock()
		for _, id := range slices.Sorted(maps.Keys(requested)) {
			w.apply(n, id, requested[id])
		}
	}
}

// awaitRequestedWorks waits until each cluster holds exactly the requested works. When the request
// for a deletion was lost with the database, the work is unknown, and awaitRequestedWorks
// deletes it as an operator would.
func (w *world) awaitRequestedWorks(round int, happened []string) {
	w.t.Helper()
	deadline := time.Now().Add(recoveryTimeout)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		why := w.difference()
		if why == "" {
			return
		}
		err := w.deleteUnknown()
		if time.Now().After(deadline) {
			w.fatal("round %d: %s; after %v without faults: %s; deleting what is unknown: %v", round,
				strings.Join(happened, ", "), recoveryTimeout, why, err)
		}
		<-tick.C
	}
}

// difference returns the first difference between the requested works and those of the clusters and servers, or "".
func (w *world) difference() string {
	for n, k := range w.kubes {
		w.mu.Lock()
		requested := maps.Clone(w.requested[n])
		w.mu.Unlock()
		if holds := k.values(); !maps.Equal(holds, requested) {
			return fmt.Sprintf("%s holds %v, requested was %v", consumer(n), holds, requested)
		}
		if amws := k.count(appliedWorks); amws != len(requested) {
			return fmt.Sprintf("%s has %d AppliedManifestWorks for %d works", consumer(n), amws, len(requested))
		}
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	doc, err := w.clients[0].ListBundles(ctx, remote.ListOptions{Size: 1000})
	if err != nil {
		return err.Error()
	}
	var list struct {
		Items []struct {
			ID, ConsumerName string
			Version          int64
			Status           struct{ ObservedVersion int64 }
		}
	}
	if err := json.Unmarshal(doc.JSON, &list); err != nil {
		return err.Error()
	}
	want := 0
	for n := range clusters {
		want += len(w.requested[n])
	}
	if len(list.Items) != want {
		return fmt.Sprintf("the servers have %d bundles for %d works", len(list.Items), want)
	}
	for _, b := range list.Items {
		if b.Status.ObservedVersion != b.Version {
			return fmt.Sprintf("%s has version %d, and a status of %d", b.ID, b.Version, b.Status.ObservedVersion)
		}
	}
	return ""
}

// deleteUnknown requests the deletion of all unknown works that no source has.
func (w *world) deleteUnknown() error {
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	list, err := w.clients[0].UnknownWorks(ctx, remote.ListOptions{Size: 1000})
	if err != nil {
		return err
	}
	for _, u := range list.Items {
		var n int
		if _, err := fmt.Sscanf(u.ConsumerName, "mc%d", &n); err != nil {
			return fmt.Errorf("an unknown work of %q", u.ConsumerName)
		}
		w.mu.Lock()
		_, wanted := w.requested[n][u.ID]
		w.mu.Unlock()
		if wanted {
			continue
		}
		if err := w.clients[0].DeleteUnknownWork(ctx, work.Consumer(u.ConsumerName), work.ID(u.ID),
			"its deletion was ordered before the database was lost"); err != nil {
			return fmt.Errorf("%s: %w", u.ID, err)
		}
	}
	return nil
}
