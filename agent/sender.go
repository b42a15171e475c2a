package agent

import (
	"context"
	"sync"

	"golang.org/x/time/rate"
)

// sender publishes in the order of the calls, at most so many events a second,
// on a goroutine of its own: whatever a broker does, the core does not wait for
// it. What waits here is bounded by the outbox's window and by what one
// comparison says.
type sender struct {
	limit     *rate.Limiter
	connected func() bool

	mu    sync.Mutex
	queue []func(ctx context.Context)
	ready chan struct{}
}

func newSender(perSecond float64, burst int, connected func() bool) *sender {
	return &sender{limit: rate.NewLimiter(rate.Limit(perSecond), burst), connected: connected,
		ready: make(chan struct{}, 1)}
}

// add has publish called in its turn. It never waits.
func (s *sender) add(publish func(ctx context.Context)) {
	s.mu.Lock()
	s.queue = append(s.queue, publish)
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

func (s *sender) take() []func(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue := s.queue
	s.queue = nil
	return queue
}

// run publishes until ctx ends. Without a connection publishing fails at once,
// so that nothing counts against the rate that a broker never sees.
func (s *sender) run(ctx context.Context) {
	for {
		for _, publish := range s.take() {
			if s.connected() && s.limit.Wait(ctx) != nil {
				return
			}
			publish(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.ready:
		}
	}
}
