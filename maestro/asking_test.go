package maestro

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"

	"atoll.dev/api/work"
	"atoll.dev/internal/quick"
)

// TestI6StatusHashesFitTheBroker: on a broker that takes 128 KB, 1,000 works of a
// consumer whose agent compares by lists are asked for in messages that it takes,
// and so are those of the others.
func TestI6StatusHashesFitTheBroker(t *testing.T) {
	quick.Slow(t, "asks for 1,000 works on a broker with small messages")
	t.Parallel()
	site := newMosquittoSite(t, 128<<10)
	m := site.start()
	var agents []*scriptedAgent
	ids := map[*scriptedAgent][]string{}
	for c, works := range map[string]int{"mc1": 1000, "mc2": 3, "mc0": 3} {
		m.consumer(c)
		a := site.agent(work.Consumer(c))
		agents = append(agents, a)
		for range works {
			ids[a] = append(ids[a], uuid.NewString())
		}
	}
	var all sync.WaitGroup
	total := 0
	for _, a := range agents {
		total += len(ids[a])
		src := m.source()
		for part := range 4 {
			all.Go(func() {
				for n := part; n < len(ids[a]); n += 4 {
					src.create(a.consumer, work.ID(ids[a][n]), n)
				}
			})
		}
	}
	all.Wait()
	m.awaitAllObserved(total)
	// The statuses that change now are lost.
	for _, a := range agents {
		a.fault(func() { a.mute = true })
		for _, id := range ids[a] {
			a.report(work.ID(id), "Changed")
		}
		a.fault(func() { a.mute = false })
	}
	m.server.comparer.AskAll()
	eventually(t, "all statuses came after all", func() error {
		missing := 0
		for _, a := range agents {
			hashes, _, err := m.server.ledger.StatusHashes(t.Context(), a.consumer, nil)
			if err != nil {
				return err
			}
			a.mu.Lock()
			for _, h := range hashes {
				if a.works[h.ID].hash != h.Hash {
					missing++
				}
			}
			a.mu.Unlock()
		}
		if missing > 0 {
			return fmt.Errorf("%d are missing", missing)
		}
		return nil
	})
	for _, a := range agents {
		if len(a.received(work.StatusResync)) == 0 {
			t.Errorf("%s was not asked", a.consumer)
		}
	}
}
