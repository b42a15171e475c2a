package bus

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
)

// PoolOptions configure a Pool.
type PoolOptions struct {
	Client ClientOptions

	// Connections is the number of connections that publish; default 1. A broker may limit
	// the rate of one connection: AWS IoT Core accepts about 100 events a second.
	Connections int
	// Rate is the pool's own limit, in events per second and connection; 0: no limit.
	Rate float64
}

// Pool is a client with several connections. The first connection subscribes. The
// events of one topic always use the same connection, which keeps their order.
type Pool struct {
	clients  []*Client
	limiters []*rate.Limiter // one for each client; nil: no limit
}

// NewPool returns a pool that does nothing until Run. Further connections have
// the client's id with "-p1", "-p2" and so on.
func NewPool(o PoolOptions) *Pool {
	p := &Pool{clients: []*Client{NewClient(o.Client)}}
	for i := 1; i < o.Connections; i++ {
		more := o.Client
		more.ClientID = fmt.Sprintf("%s-p%d", o.Client.ClientID, i)
		more.Subscriptions, more.Handler, more.OnConnected, more.Registerer = nil, nil, nil, nil
		c := NewClient(more)
		c.metrics = p.clients[0].metrics // registered once
		p.clients = append(p.clients, c)
	}
	if o.Rate > 0 {
		for range p.clients {
			p.limiters = append(p.limiters, rate.NewLimiter(rate.Limit(o.Rate), max(1, int(o.Rate/10))))
		}
	}
	return p
}

// Run connects and stays connected until ctx ends.
func (p *Pool) Run(ctx context.Context) error {
	var group errgroup.Group
	for _, c := range p.clients {
		group.Go(func() error { return c.Run(ctx) })
	}
	return group.Wait()
}

// Check is a readiness check: nil when all clients are connected.
func (p *Pool) Check(ctx context.Context) error {
	var errs []error
	for _, c := range p.clients {
		errs = append(errs, c.Check(ctx))
	}
	return errors.Join(errs...)
}

// DownFor returns the longest DownFor of the pool's clients: events whose topic uses that
// client wait.
func (p *Pool) DownFor() (longest time.Duration) {
	for _, c := range p.clients {
		longest = max(longest, c.DownFor())
	}
	return longest
}

// Limit is as Client.Limit.
func (p *Pool) Limit() int { return p.clients[0].Limit() }

// PublishAsync is as Client.PublishAsync. It waits for the pool's rate, too.
func (p *Pool) PublishAsync(ctx context.Context, topic string, e Event, done func(error)) error {
	return p.PublishLate(ctx, topic, func() (Event, error) { return e, nil }, done)
}

// PublishLate is as Client.PublishLate. It waits for the pool's rate, too.
func (p *Pool) PublishLate(ctx context.Context, topic string, event func() (Event, error), done func(error)) error {
	i := p.clientIndex(topic)
	if p.limiters != nil {
		if err := p.limiters[i].Wait(ctx); err != nil {
			return err
		}
	}
	return p.clients[i].PublishLate(ctx, topic, event, done)
}

// clientIndex returns the index of the client that publishes a topic's events.
func (p *Pool) clientIndex(topic string) int {
	h := fnv.New32a()
	h.Write([]byte(topic))
	return int(h.Sum32() % uint32(len(p.clients)))
}
