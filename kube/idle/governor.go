package idle

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// process is the process that a [Governor] measures, and sets to a mode. Only the governor's goroutine calls it.
type process interface {
	used() time.Duration // the processor time of all threads so far
	setUp(mode)          // sets the process to the mode, as far as the system and the environment permit it
}

// Governor changes a plane between idle and busy. [New] makes one.
type Governor struct {
	clock   clock.Clock
	process process
	log     *slog.Logger
	crowds  chan struct{} // holds one message that Run has not received yet

	isIdle   atomic.Bool
	requests atomic.Int64 // in progress, of those that began while the plane was idle
}

// New returns a governor for this process. The process stays busy while Run does not run. c times the measurements.
func New(c Clock, log *slog.Logger) *Governor { return newGovernor(c, &thisProcess{}, log) }

func newGovernor(c clock.Clock, p process, log *slog.Logger) *Governor {
	return &Governor{clock: c, process: p, log: log, crowds: make(chan struct{}, 1)}
}

// Run measures the process once a second, and after a crowd, and changes its mode as decide says. When ctx is done,
// Run sets the process to busy and returns.
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

// change sets the process to the mode to, unless from is the same mode.
func (g *Governor) change(from, to mode) {
	if from == to {
		return
	}
	g.process.setUp(to)
	g.isIdle.Store(to == idle)
	g.log.Debug("the plane changed its mode", "mode", string(to))
}

// Count returns a handler that passes every request to next, and counts the requests in progress that began while the
// plane was idle. When there are more than idleRequests, it tells the governor. It does not count requests for which
// lasts returns true, such as watches.
func (g *Governor) Count(next http.Handler, lasts func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.isIdle.Load() && !lasts(r) {
			defer g.requests.Add(-1)
			if g.requests.Add(1) > idleRequests {
				select {
				case g.crowds <- struct{}{}:
				default: // the governor has not received the message before this one yet
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}
