package idle

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// process is what a [Governor] measures and sets up. Only the governor's goroutine calls it.
type process interface {
	used() time.Duration // the processor time of all threads so far
	setUp(mode)          // does nothing where the system or the environment does not permit it
}

// Governor makes a plane idle and busy. Make one by [New].
type Governor struct {
	clock   clock.Clock
	process process
	log     *slog.Logger
	crowds  chan struct{} // has room for one

	isIdle   atomic.Bool
	requests atomic.Int64 // in progress, of those that began while the plane was idle
}

// New returns a governor for this process, which is busy until Run runs. The governor measures when timers of c end.
func New(c Clock, log *slog.Logger) *Governor { return newGovernor(c, &thisProcess{}, log) }

func newGovernor(c clock.Clock, p process, log *slog.Logger) *Governor {
	return &Governor{clock: c, process: p, log: log, crowds: make(chan struct{}, 1)}
}

// Run measures once a second and makes the process idle and busy, until ctx is done; then the process is busy.
func (g *Governor) Run(ctx context.Context) {
	timer := g.clock.NewTimer(time.Second)
	defer timer.Stop()
	s := state{busy, g.measure()}
	for {
		seen := tick
		select {
		case <-ctx.Done():
			g.change(s.mode, busy)
			return
		case <-g.crowds:
			seen = crowd
		case <-timer.C():
			timer.Reset(time.Second)
		}
		next := decide(s, g.measure(), seen)
		g.change(s.mode, next.mode)
		s = next
	}
}

func (g *Governor) measure() usage { return usage{time.Now(), g.process.used()} }

// change sets the process up for a mode that it is not in.
func (g *Governor) change(from, to mode) {
	if from == to {
		return
	}
	g.process.setUp(to)
	g.isIdle.Store(to == idle)
	g.log.Debug("the plane changed its mode", "mode", string(to))
}

// Count returns a handler that tells the governor of each request which arrives in an idle plane, and lets next handle
// all requests. Requests for which lasts is true, such as watches, do not count.
func (g *Governor) Count(next http.Handler, lasts func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.isIdle.Load() && !lasts(r) {
			defer g.requests.Add(-1)
			if g.requests.Add(1) > idleRequests {
				select {
				case g.crowds <- struct{}{}:
				default: // the governor is about to see the one before
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}
