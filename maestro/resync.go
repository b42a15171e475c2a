package maestro

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/maestro/delivery"
	"atoll.dev/store"
)

// resyncRequest is an agent's list of what it holds.
type resyncRequest struct {
	consumer string
	versions []work.SpecVersion
	ack      func()
}

// resyncs answers spec resync requests, a few at a time: each reads all of a
// consumer's ledger, and after an outage all agents ask at once.
type resyncs struct {
	s     *Server
	queue chan resyncRequest
}

const resyncWorkers = 2

func newResyncs(s *Server) *resyncs { return &resyncs{s: s, queue: make(chan resyncRequest, 1<<14)} }

// put must not wait, like ingest.put. That more agents than fit ask at once is
// not expected; one that is dropped gets what it lacks from the ledger's
// repetitions.
func (rs *resyncs) put(r resyncRequest) {
	select {
	case rs.queue <- r:
	default:
		rs.s.metrics.dropped.WithLabelValues("overflow").Inc()
		r.ack()
	}
}

func (rs *resyncs) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-rs.queue:
			rs.answer(ctx, r)
		}
	}
}

// answer compares, records what the comparison says in one transaction, and
// only then acknowledges the request and has the difference sent: a server
// that dies in between finds it pending in the ledger.
func (rs *resyncs) answer(ctx context.Context, r resyncRequest) {
	start := time.Now()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := rs.s.answerResync(ctx, r)
		if err == nil {
			r.ack()
			since(rs.s.metrics.resync, start)
			return
		}
		rs.s.log.LogAttrs(ctx, slog.LevelWarn, "resync request not answered yet", slog.String("consumer", r.consumer), slog.Any("error", err))
		if !transient(err) {
			r.ack() // it will fail again; the agent asks anew when it reconnects
			return
		}
		if !sleep(ctx, wait) {
			return
		}
	}
}

func (s *Server) answerResync(ctx context.Context, r resyncRequest) error {
	var c comparison
	var graves []held
	versions := make(map[string]int64, len(r.versions))
	for _, v := range r.versions {
		versions[v.ID] = v.Version
	}
	ctx = store.WithActor(ctx, store.Actor{Principal: r.consumer})
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
		ours, err := heldBy(ctx, tx, r.consumer)
		if err != nil {
			return err
		}
		c = compareSpecs(ours, r.versions)
		if err := lower(ctx, tx, c.send, r.versions); err != nil {
			return err
		}
		if c, err = raiseAhead(ctx, tx, c, ours); err != nil {
			return err
		}
		if graves, err = buried(ctx, tx, r.consumer, c.unknown); err != nil {
			return err
		}
		c.unknown = c.unknownBut(graves)
		generations := make([]int64, len(c.unknown))
		for i, id := range c.unknown {
			generations[i] = versions[id]
		}
		return noteUnknown(ctx, tx, r.consumer, c.unknown, generations)
	})
	if err != nil {
		return err
	}
	if len(c.unknown) > 0 {
		s.log.LogAttrs(ctx, slog.LevelWarn, "agent holds works that no source has; they are left alone", slog.String("consumer", r.consumer),
			slog.Int("works", len(c.unknown)), slog.String("first", c.unknown[0]))
	}
	s.countUnknown(ctx)
	for _, g := range graves {
		m := encodeBuried(r.consumer, g, versions[g.id], s.opts.SourceID, time.Now())
		if err := s.publish(ctx, r.consumer, m); err != nil {
			// The agent is asked again by nobody, but it asks again itself
			// when the broker is back.
			return errors.Join(store.ErrUnavailable, err)
		}
	}
	for _, h := range c.received {
		s.delivery.received(r.consumer, h.id, h.generation)
	}
	for _, h := range c.send {
		s.delivery.resend(delivery.Work{Consumer: r.consumer, ID: h.id, Generation: h.generation, Deleting: h.deleting})
	}
	s.delivery.wake()
	return nil
}

// unknownBut is what is unknown, less the graves.
func (c *comparison) unknownBut(graves []held) []string {
	dead := make(map[string]bool, len(graves))
	for _, g := range graves {
		dead[g.id] = true
	}
	unknown := []string{}
	for _, id := range c.unknown {
		if !dead[id] {
			unknown = append(unknown, id)
		}
	}
	return unknown
}

// raiseAhead raises what the agent holds at a later generation than ours, and
// moves it from received to send.
func raiseAhead(ctx context.Context, tx *store.Tx, c comparison, ours []held) (comparison, error) {
	generations := make(map[string]int64, len(ours))
	for _, h := range ours {
		generations[h.id] = h.generation
	}
	var received []held
	for _, h := range c.received {
		if h.generation <= generations[h.id] {
			received = append(received, h)
			continue
		}
		if err := lockLedger(ctx, tx, h.id); err != nil {
			return c, err
		}
		d, err := tx.GetForUpdate(ctx, kindBundle, h.id)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return c, err
		}
		d, raised, err := raise(ctx, tx, d, h.generation)
		if err != nil {
			return c, err
		}
		if raised {
			c.send = append(c.send, held{d.ID, d.Generation, false})
		}
	}
	c.received = received
	return c, nil
}

// askStatuses has every agent compare its statuses with ours, soon.
func (s *Server) askStatuses() {
	select {
	case s.asking <- struct{}{}:
	default:
	}
}

// runAsking sends status resync requests when asked to: after the broker or
// the database was away, whatever agents reported meanwhile may be lost.
func (s *Server) runAsking(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.asking:
		}
		for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
			err := s.askAll(ctx)
			if err == nil {
				break
			}
			s.log.LogAttrs(ctx, slog.LevelWarn, "statuses not compared yet", slog.Any("error", err))
			if !sleep(ctx, wait) {
				return nil
			}
		}
	}
}

func (s *Server) askAll(ctx context.Context) error {
	names, err := s.consumersWithBundles(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := s.askConsumer(ctx, name, nil); err != nil {
			return err
		}
	}
	return nil
}

// askConsumer asks one agent, about some bundles or all.
func (s *Server) askConsumer(ctx context.Context, consumer string, ids []string) error {
	hashes, err := s.statusHashes(ctx, consumer, ids)
	if err != nil {
		return err
	}
	for _, batch := range batchHashes(hashes) {
		m, err := encodeStatusResync(consumer, batch, s.opts.SourceID)
		if err != nil {
			return err
		}
		if err := s.publish(ctx, consumer, m); err != nil {
			return err
		}
	}
	return nil
}
