package delivery

import (
	"time"

	"atoll.dev/api/work"
)

// A Work is an order to a consumer: to apply a bundle at a generation, or to delete it.
type Work struct {
	Consumer   work.Consumer
	ID         work.ID
	Generation int64
	Deleting   bool
}

// supersedes reports whether w is a later state of the document than old. Reads of the
// store can arrive out of order.
func (w Work) supersedes(old Work) bool {
	return w.Generation > old.Generation || w.Generation == old.Generation && w.Deleting && !old.Deleting
}

// A Send is an order to publish a work. The caller must call EndSend exactly once for it.
// Until then Next returns no other Send of the same work, so a message never overtakes an
// earlier one of its work.
type Send struct {
	Work
	Attempt int // from 1; above 1 the agent may have the work, and only its status was lost

	token uint64 // unique for each Send
}

// Outcome is how a Send ended.
type Outcome int

const (
	Published Outcome = iota // the carrier has the message
	Lost                     // the carrier may have it, or will never take it: repeat it with back-off
	NotSent                  // the carrier does not have it: send it soon
)

// Config has the limits of a Machine. A zero field means its default.
type Config struct {
	Window int // most works sent to a consumer and not acknowledged; default 1000
	Burst  int // most works that one lane sends before the next lane's turn; default 16

	// The Machine sends an unacknowledged work again after Base, twice that, and so
	// on up to Max; default 1 s and 60 s.
	Base, Max time.Duration

	// A lane repeats at most Retries works in Base (default 50). While no event of
	// the consumer's agent arrives, it repeats Probes works (default 10), and doubles
	// the pause each time, up to Max.
	Retries, Probes int

	// Deletions have lanes of their own, so they wait for no other work and no other
	// work waits for them. The pause before a deletion is sent again grows up to
	// DeleteMax (default 5 min). The Machine repeats at most DeleteRate deletions a
	// second, for all consumers together (default 50).
	DeleteMax  time.Duration
	DeleteRate int

	// Jitter returns a number in [0,1), by which a pause is stretched to between three
	// and five quarters. Default 0.5: no change.
	Jitter func() float64
}

func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&c.Window, 1000)
	def(&c.Burst, 16)
	def(&c.Retries, 50)
	def(&c.Probes, 10)
	def(&c.DeleteRate, 50)
	if c.Base <= 0 {
		c.Base = time.Second
	}
	if c.Max <= 0 {
		c.Max = 60 * time.Second
	}
	if c.DeleteMax <= 0 {
		c.DeleteMax = 5 * time.Minute
	}
	if c.Jitter == nil {
		c.Jitter = func() float64 { return 0.5 }
	}
	return c
}

// maxPause returns the longest pause between two attempts.
func (c *Config) maxPause(of class) time.Duration {
	if of == deletions {
		return c.DeleteMax
	}
	return c.Max
}
