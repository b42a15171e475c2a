package maestro

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"atoll.dev/store"
)

// contacts remembers which agents were heard, and writes it down at a pace:
// at most once in seenEvery for each consumer, and off the path of events.
type contacts struct {
	s *Server

	mu    sync.Mutex
	ids   map[string]string    // consumer's name -> id
	heard map[string]time.Time // not written down yet
	noted map[string]time.Time // when each was written down last
}

const (
	seenEvery = 2 * time.Second
	seenFlush = 500 * time.Millisecond
)

func newContacts(s *Server) *contacts {
	return &contacts{s: s, ids: map[string]string{}, heard: map[string]time.Time{}, noted: map[string]time.Time{}}
}

// heard takes any event of an agent.
func (s *Server) heard(consumer string) {
	for _, d := range s.deliverers() {
		d.heard(consumer)
	}
	c := s.contacts
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.s.reporter != nil {
		c.s.reporter.heard(consumer, now)
	}
	if now.Sub(c.noted[consumer]) >= seenEvery {
		c.heard[consumer] = now
	}
}

// changed keeps the names.
func (c *contacts) changed(r store.Round) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range r.Changes {
		switch {
		case d.Kind != kindConsumer:
		case d.Removed:
			delete(c.ids, d.Name)
			delete(c.noted, d.Name)
		default:
			c.ids[d.Name] = d.ID
		}
	}
}

func (c *contacts) run(ctx context.Context) error {
	tick := time.NewTicker(seenFlush)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			c.flush(ctx)
		}
	}
}

func (c *contacts) flush(ctx context.Context) {
	c.mu.Lock()
	due := c.heard
	c.heard = map[string]time.Time{}
	c.mu.Unlock()
	for name, at := range due {
		id, err := c.id(ctx, name)
		if err == nil && id != "" {
			err = c.s.store.Touch(ctx, kindConsumer, id, at)
		}
		if err != nil {
			c.s.log.LogAttrs(ctx, slog.LevelDebug, "last-seen not written", slog.String("consumer", name), slog.Any("error", err))
			return // the next event brings it again
		}
		c.mu.Lock()
		if id != "" {
			c.noted[name] = at
		}
		c.mu.Unlock()
	}
}

// id returns a consumer's id, or "" when there is no consumer of that name.
func (c *contacts) id(ctx context.Context, name string) (string, error) {
	c.mu.Lock()
	id := c.ids[name]
	c.mu.Unlock()
	if id != "" {
		return id, nil
	}
	page, err := c.s.store.List(ctx, store.Query{Kind: kindConsumer, Where: store.Fragment{SQL: "d.name = $1", Args: []any{name}}, Limit: 1, WireOnly: true, Deletion: store.WithDeleting})
	if err != nil || len(page.Documents) == 0 {
		return "", err
	}
	id = page.Documents[0].ID
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids[name] = id
	return id, nil
}
