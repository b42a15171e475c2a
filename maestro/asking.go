package maestro

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/api/work"
	"atoll.dev/store"
)

// askStatuses has every agent compare what it holds with ours, soon.
func (s *Server) askStatuses() {
	select {
	case s.asking <- struct{}{}:
	default:
	}
}

// An agent that speaks digests is asked again when it says nothing, and at
// last in the other form: its cluster may have another agent now.
const (
	askAgain = 3 * time.Second
	askTries = 3
)

// asked are the agents whose digest has not come. It belongs to runAsking.
type asked struct {
	at, due time.Time
	tries   int
}

// runAsking asks agents for their statuses when told to: after the broker or
// the database was away, or another server died, whatever agents reported
// meanwhile may be lost.
func (s *Server) runAsking(ctx context.Context) error {
	open := map[string]asked{}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		all := false
		select {
		case <-ctx.Done():
			return nil
		case <-s.asking:
			all = true
		case <-timer.C:
		}
		for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
			err := s.askAll(ctx, all, open)
			if err == nil {
				break
			}
			s.log.LogAttrs(ctx, slog.LevelWarn, "statuses not compared yet", slog.Any("error", err))
			if !sleep(ctx, wait) {
				return nil
			}
		}
		next := time.Hour
		for _, a := range open {
			next = min(next, max(time.Until(a.due), 10*time.Millisecond))
		}
		timer.Reset(next)
	}
}

// askAll asks all agents that have bundles, or those that have not answered.
func (s *Server) askAll(ctx context.Context, all bool, open map[string]asked) error {
	if len(open) > 0 {
		answered, err := s.digestAgents(ctx)
		if err != nil {
			return err
		}
		for name, a := range open {
			if at, speaks := answered[name]; !speaks || at.After(a.at) {
				delete(open, name)
			}
		}
	}
	names := make([]string, 0, len(open))
	speakers := map[string]time.Time{}
	if all {
		var err error
		if names, err = s.consumersWithBundles(ctx); err != nil {
			return err
		}
		if speakers, err = s.digestAgents(ctx); err != nil {
			return err
		}
		clear(open)
	}
	now := time.Now()
	for _, name := range names {
		if _, speaks := speakers[name]; speaks {
			open[name] = asked{due: now}
			continue
		}
		if err := s.askConsumer(ctx, name, nil); err != nil {
			return err
		}
	}
	for name, a := range open {
		if a.due.After(now) {
			continue
		}
		if a.tries == askTries {
			delete(open, name)
			if err := s.askConsumer(ctx, name, nil); err != nil {
				return err
			}
			continue
		}
		if a.tries == 0 {
			a.at = now
		}
		if err := s.sendDigest(ctx, name, work.DigestAnswer{Ask: true}); err != nil {
			return err
		}
		a.tries++
		a.due = now.Add(askAgain << (a.tries - 1))
		open[name] = a
	}
	return nil
}

// askConsumer asks one agent in the form that all agents know, about some
// bundles or all.
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

// digestAgents lists the consumers whose agents speak digests, and when they
// did last.
func (s *Server) digestAgents(ctx context.Context) (map[string]time.Time, error) {
	found := map[string]time.Time{}
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
		clear(found)
		rows, err := tx.Query(ctx, `select consumer, now() - answered_at from agent_digest`)
		if err != nil {
			return err
		}
		var name string
		var ago time.Duration // the database's clock is not ours
		_, err = pgx.ForEachRow(rows, []any{&name, &ago}, func() error {
			found[name] = time.Now().Add(-ago)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing agents that compare digests: %w", err)
	}
	return found, nil
}
