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

// PoolOptions are those of a Pool.
type PoolOptions struct {
	Client ClientOptions

	// Connections publish; default 1. A broker may bound what one connection
	// publishes: AWS IoT Core takes about 100 events a second.
	Connections int
	// Rate bounds it here, in events per second and connection; 0: it does not.
	Rate float64
}

// Pool is a client with several connections. The first one subscribes; events
// of one topic always leave by the same one, so that their order stays.
type Pool struct {
	clients []*Client
	pace    []*rate.Limiter // nil: none
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
		c.metrics = p.clients[0].metrics // one family of figures
		p.clients = append(p.clients, c)
	}
	if o.Rate > 0 {
		for range p.clients {
			p.pace = append(p.pace, rate.NewLimiter(rate.Limit(o.Rate), max(1, int(o.Rate/10))))
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

// Check is a readiness check: nil when all connections stand.
func (p *Pool) Check(ctx context.Context) error {
	var errs []error
	for _, c := range p.clients {
		errs = append(errs, c.Check(ctx))
	}
	return errors.Join(errs...)
}

// DownFor tells for how long there has been no connection, by the one that is
// worst off: what it is to publish has to wait.
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
	i := p.of(topic)
	if p.pace != nil {
		if err := p.pace[i].Wait(ctx); err != nil {
			return err
		}
	}
	return p.clients[i].PublishLate(ctx, topic, event, done)
}

// of is the connection by which a topic's events leave.
func (p *Pool) of(topic string) int {
	h := fnv.New32a()
	h.Write([]byte(topic))
	return int(h.Sum32() % uint32(len(p.clients)))
}
