package maestro

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"atoll.dev/api/work"
	"atoll.dev/bus"
)

// TestI6AnAgentThatCannotBeAskedDelaysNoOther: one consumer's message is refused
// each time, and another's is never acknowledged; all others are asked at once.
func TestI6AnAgentThatCannotBeAskedDelaysNoOther(t *testing.T) {
	var mu sync.Mutex
	counts := map[string]int{}
	limited, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	s := &Server{log: slog.New(slog.DiscardHandler)}
	s.delivery = &deliverer{s: s, send: func(ctx context.Context, consumer string, encode func() (bus.Event, error),
		done func(error)) error {
		mu.Lock()
		counts[consumer]++
		mu.Unlock()
		switch consumer {
		case "mc0":
			return errors.New("refused")
		case "mc1":
			return nil // done is never called
		}
		done(nil)
		return nil
	}}
	open := map[string]asked{}
	for n := range 100 {
		open[fmt.Sprint("mc", n)] = asked{due: time.Now()}
	}
	s.askDue(limited, open)
	if len(counts) != 100 {
		t.Errorf("%d of 100 were asked", len(counts))
	}
	now := time.Now()
	if a := open["mc0"]; a.failures != 1 || a.tries != 0 || a.due.After(now.Add(time.Second)) {
		t.Errorf("who was not asked is not asked again soon: %+v", a)
	}
	if a := open["mc2"]; a.tries != 1 || a.failures != 0 {
		t.Errorf("%+v", a)
	}
}

// TestI6StatusHashesFitTheBroker: on a broker that takes 128 KB, 1,000 works of a
// consumer whose agent compares by lists are asked for in messages that it takes,
// and so are those of the others.
func TestI6StatusHashesFitTheBroker(t *testing.T) {
	t.Parallel()
	site := newMosquittoSite(t, 128<<10)
	m := site.start()
	var agents []*scriptedAgent
	ids := map[*scriptedAgent][]string{}
	for c, works := range map[string]int{"mc1": 1000, "mc2": 3, "mc0": 3} {
		m.consumer(c)
		a := site.agent(c)
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
					src.create(a.consumer, ids[a][n], n)
				}
			})
		}
	}
	all.Wait()
	m.settled(total)
	// The statuses that change now are lost.
	for _, a := range agents {
		a.fault(func() { a.mute = true })
		for _, id := range ids[a] {
			a.report(id, "Changed")
		}
		a.fault(func() { a.mute = false })
	}
	m.server.askStatuses()
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
