package agent

import (
	"context"
	"sync"

	"golang.org/x/time/rate"
)

// sender publishes events in the order of the calls of add, at a limited rate, on a
// goroutine of its own: the core never waits for a broker. The outbox's window and
// the size of one comparison bound its queue.
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

// add queues a call of publish. It never blocks.
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

// run publishes until ctx ends. Without a connection it does not wait for the rate,
// since each publish fails at once.
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
