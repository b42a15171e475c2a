package maestro

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/store"
)

// TestI6AFloodingAgentHurtsOnlyItself: one agent reports as fast as it can, about
// works of its own and about works that it does not have, and compares all the
// time; fifty others report now and then. The others' statuses are stored as
// promptly as ever, none of them is dropped, and when the flood is over the last
// status of each of the flooding agent's works is there, too.
func TestI6AFloodingAgentHurtsOnlyItself(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	const polite, each = 50, 4
	src := m.source()
	m.consumer("flood")
	flood := site.agent("flood")
	for w := range each {
		src.create("flood", work.ID(fmt.Sprintf("flood-%d", w)), 1)
	}
	var agents []*scriptedAgent
	for n := range polite {
		name := fmt.Sprintf("mc%d", n)
		m.consumer(name)
		agents = append(agents, site.agent(work.Consumer(name)))
		src.create(work.Consumer(name), work.ID(name+"-w"), 1)
	}
	m.awaitAllObserved(polite + each)

	report := func(what string) time.Duration {
		t.Helper()
		begun := time.Now()
		want := map[string]string{}
		for _, a := range agents {
			a.report(work.ID(a.consumer+"-w"), what)
			a.mu.Lock()
			want[string(a.consumer)] = a.works[work.ID(a.consumer+"-w")].hash
			a.mu.Unlock()
		}
		eventually(t, "the statuses of the others are stored", func() error {
			have, err := statusHashesOf(t.Context(), m.server)
			if err != nil {
				return err
			}
			for name, hash := range want {
				if have[name] == hash {
					delete(want, name)
				}
			}
			if len(want) > 0 {
				return fmt.Errorf("%s: %d are missing", what, len(want))
			}
			return nil
		})
		return time.Since(begun)
	}
	calm := report("Calm")
	ctx, stop := context.WithCancel(t.Context())
	var flooding sync.WaitGroup
	sent := 0
	flooding.Go(func() {
		topic := bus.Topic{Source: "maestro", Consumer: "flood", Kind: bus.AgentEvents}.String()
		for ; ctx.Err() == nil; sent++ {
			flood.mu.Lock()
			id := fmt.Sprintf("flood-%d", sent%each)
			w := flood.works[work.ID(id)]
			w.status = fmt.Appendf(
				nil, `{"conditions":[{"type":"Flood","status":"True","reason":"R%d","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}`, sent)
			w.hash = hexHash("%d", sent)
			e := flood.status(work.ID(id), w, work.StatusUpdate)
			flood.mu.Unlock()
			if sent%3 == 0 {
				e.Extensions[work.ExtResourceID] = fmt.Sprintf("strange-%d", sent)
			}
			_ = flood.client.PublishAsync(ctx, topic, e, func(error) {})
			if sent%50 == 0 {
				flood.resync(ctx)
			}
		}
	})
	var flooded []time.Duration
	for round := range 3 {
		flooded = append(flooded, report(fmt.Sprint("Round", round)))
	}
	stop()
	flooding.Wait()
	t.Logf("%d events of one agent; fifty statuses of others took %v without, and %v beside them", sent, calm, flooded)

	eventually(t, "the flooding agent's last statuses are there", func() error {
		hashes, _, err := m.server.ledger.StatusHashes(t.Context(), "flood", nil)
		if err != nil {
			return err
		}
		flood.mu.Lock()
		defer flood.mu.Unlock()
		for _, h := range hashes {
			if w := flood.works[h.ID]; w == nil || w.hash != h.Hash {
				return fmt.Errorf("%s differs", h.ID)
			}
		}
		return nil
	})
}

// statusHashesOf reads the hash of some status of each consumer.
func statusHashesOf(ctx context.Context, s *Server) (map[string]string, error) {
	have := map[string]string{}
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
		rows, err := tx.Query(ctx, `select consumer, status_hash from ledger`)
		if err != nil {
			return err
		}
		var name, hash string
		_, err = pgx.ForEachRow(rows, []any{&name, &hash}, func() error {
			have[name] = hash
			return nil
		})
		return err
	})
	return have, err
}
