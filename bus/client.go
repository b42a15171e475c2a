package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

var (
	// ErrDisconnected: the event did not reach the broker, or nobody knows.
	ErrDisconnected = errors.New("not connected to the broker")
	// ErrTooLarge: the event is over the broker's limit and was not sent.
	ErrTooLarge = errors.New("the event is larger than the broker takes")
	// ErrUnacknowledged: the broker did not acknowledge the event in time
	// (ClientOptions.AckTimeout). It may have been delivered.
	ErrUnacknowledged = errors.New("the broker did not acknowledge the event in time")
	// ErrNotAuthorized: the broker's rules do not allow the topic.
	ErrNotAuthorized = errors.New("the broker does not allow this topic")
	// ErrUnheard: the broker took the event, and nobody has subscribed to its
	// topic. Only clients that ask for it (ClientOptions.TellUnheard) are told.
	ErrUnheard = errors.New("nobody hears this topic")
)

// ClientOptions say which broker, who connects, and what it wants to hear.
type ClientOptions struct {
	Addr string      // host:port
	TLS  *tls.Config // nil: plain TCP, unless there are Keys
	// instead of TLS; read for each connection, and when they change the client connects anew
	Keys               func() (Keys, error)
	Username, Password string   // of brokers that want them
	ClientID           string   // another connection with the same one ends this
	Subscriptions      []string // topic filters, QoS 1

	// TellUnheard has a publish that nobody hears fail with ErrUnheard, where the
	// broker says so (MQTT's "no matching subscribers"; Atoll's does for the events
	// of adapters).
	TellUnheard bool

	// Structured sends events as JSON objects. Without it, attributes are user
	// properties. Both are understood always.
	Structured bool

	// Handler gets each event, one at a time and in order, and must hand it
	// over quickly: while it runs, nothing is read. It, or whoever it hands the
	// message to, calls Ack once what the event says is durable.
	Handler func(ctx context.Context, m Message)

	// OnConnected is called after each connect, once all subscriptions are
	// acknowledged: what was missed meanwhile must be asked for. It runs beside
	// the handler; its context ends with the connection.
	OnConnected func(ctx context.Context)

	Logger     *slog.Logger
	Registerer prometheus.Registerer

	DialTimeout time.Duration // for connecting and subscribing; default 5 s
	KeepAlive   time.Duration // default 10 s; a silent broker is given up after 1.5 times that
	// bytes of an event as it is sent, for brokers that do not say theirs; 0: no limit but the
	// broker's
	MaxMessage int
	Window     int           // events sent and not yet acknowledged; default 1,000, at most what the broker takes
	AckTimeout time.Duration // for the broker's acknowledgement of an event; default 10 s
	MinBackoff time.Duration // default 20 ms
	MaxBackoff time.Duration // default 2 s
}

func (o ClientOptions) withDefaults() ClientOptions {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Handler == nil {
		o.Handler = func(_ context.Context, m Message) { m.Ack() }
	}
	if o.OnConnected == nil {
		o.OnConnected = func(context.Context) {}
	}
	if o.DialTimeout == 0 {
		o.DialTimeout = 5 * time.Second
	}
	if o.KeepAlive == 0 {
		o.KeepAlive = 10 * time.Second
	}
	if o.Window == 0 {
		o.Window = 1000
	}
	if o.AckTimeout == 0 {
		o.AckTimeout = 10 * time.Second
	}
	if o.MinBackoff == 0 {
		o.MinBackoff = 20 * time.Millisecond
	}
	if o.MaxBackoff == 0 {
		o.MaxBackoff = 2 * time.Second
	}
	return o
}

// Message is a received event. Ack tells the broker that it was taken; it may
// be called by any goroutine, in any order (the client keeps the order that
// MQTT wants), and does nothing once the connection is gone.
type Message struct {
	Topic string
	Event Event
	Ack   func()
}

// Client is a connection to a broker that comes back when it is lost. Use
// NewClient, then Run; the other methods may be called by many goroutines.
type Client struct {
	o       ClientOptions
	metrics *clientMetrics
	badLog  *rate.Limiter // undecodable messages are logged at this pace
	lostLog *rate.Limiter // and attempts to connect

	keysEvery time.Duration // how often keys on disk are looked at

	mu    sync.Mutex
	conn  *connection // nil while disconnected
	why   error       // why it is nil
	lost  time.Time   // since when
	limit int         // the broker's when it was last connected; 0: none known
}

// NewClient returns a client that does nothing until Run.
func NewClient(o ClientOptions) *Client {
	o = o.withDefaults()
	return &Client{
		o: o, why: errors.New("not connected yet"), lost: time.Now(), badLog: rate.NewLimiter(
			1, 5), lostLog: rate.NewLimiter(rate.Every(30*time.Second), 3),
		metrics: newClientMetrics(o.Registerer), keysEvery: keysInterval,
	}
}

// Run connects and stays connected until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	backoff := c.o.MinBackoff
	for {
		begun := time.Now()
		err := c.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		lived := time.Since(begun) > c.o.MaxBackoff
		if lived {
			backoff = c.o.MinBackoff
		}
		// An outage can be long. Its beginning is said, and then that it lasts.
		level := slog.LevelDebug
		if c.lostLog.Allow() || lived {
			level = slog.LevelWarn
		}
		c.o.Logger.Log(ctx, level, "broker connection lost", "broker", c.o.Addr, "error", err, "retry_in",
			backoff.String())
		timer := time.NewTimer(backoff/2 + rand.N(backoff))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		backoff = min(2*backoff, c.o.MaxBackoff)
	}
}

// serve makes one connection and returns when it is gone.
func (c *Client) serve(ctx context.Context) error {
	conn, err := dial(ctx, c)
	if err != nil {
		c.down(err)
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var calls sync.WaitGroup
	err = conn.run(ctx, func() {
		c.metrics.connects.Inc()
		c.mu.Lock()
		c.conn, c.why, c.limit = conn, nil, int(conn.limit)
		c.mu.Unlock()
		c.o.Logger.Info("broker connected", "broker", c.o.Addr, "client_id", c.o.ClientID)
		calls.Go(func() { c.o.OnConnected(ctx) })
	})
	c.down(err)
	conn.fail()
	cancel()
	calls.Wait()
	return err
}

func (c *Client) down(why error) {
	if why == nil {
		why = errors.New("closed")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.lost = time.Now()
	}
	c.conn, c.why = nil, why
}

// Connected tells whether events can be sent now.
func (c *Client) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn != nil
}

// DownFor tells for how long there has been no connection.
func (c *Client) DownFor() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		return 0
	}
	return time.Since(c.lost)
}

// Check is a readiness check: nil when connected and subscribed.
func (c *Client) Check(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return fmt.Errorf("broker %s: %w", c.o.Addr, c.why)
	}
	return nil
}

// Limit is the largest event that can be sent, in bytes as Event.Size counts
// them; 0 is no limit that is known. It is the smaller one of MaxMessage and
// what the broker said when it was last connected.
func (c *Client) Limit() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.limit == 0:
		return c.o.MaxMessage
	case c.o.MaxMessage == 0:
		return c.limit
	}
	return min(c.limit, c.o.MaxMessage)
}

// Publish sends an event and waits for the broker's acknowledgement. It fails
// with ErrDisconnected, ErrUnacknowledged, ErrTooLarge, ErrNotAuthorized, or as
// ctx does; only ErrTooLarge and ErrNotAuthorized are certain not to have been
// delivered.
func (c *Client) Publish(ctx context.Context, topic string, e Event) error {
	done := make(chan error, 1)
	if err := c.PublishAsync(ctx, topic, e, func(err error) { done <- err }); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// PublishAsync sends an event and returns; done is called once, by a goroutine
// of the connection, when the broker has acknowledged the event, or AckTimeout
// after it was written (ErrUnacknowledged), or when the connection ends. It must
// not wait. PublishAsync itself waits only while the window is full. When it
// returns an error, done is not called. Events of one caller are sent in order.
func (c *Client) PublishAsync(ctx context.Context, topic string, e Event, done func(error)) error {
	return c.PublishLate(ctx, topic, func() (Event, error) { return e, nil }, done)
}

// PublishLate is PublishAsync of an event that is made when there is room for
// it: a caller that waited for the window can look once more whether the event is
// still what it should be. When event fails nothing is sent, and its error is
// returned.
func (c *Client) PublishLate(ctx context.Context, topic string, event func() (Event, error), done func(error)) error {
	c.mu.Lock()
	conn, why := c.conn, c.why
	c.mu.Unlock()
	if conn == nil {
		return fmt.Errorf("%w: %w", ErrDisconnected, why)
	}
	if err := conn.reserve(ctx); err != nil {
		return err
	}
	e, err := event()
	if err == nil {
		err = c.publish(conn, topic, e, done)
	}
	if err != nil {
		conn.release()
	}
	return err
}

// publish sends an event by a connection that has a place for it.
func (c *Client) publish(conn *connection, topic string, e Event, done func(error)) error {
	form := e.publish
	if c.o.Structured {
		form = e.publishStructured
	}
	p, err := form(topic)
	if err != nil {
		return err
	}
	if most := c.o.MaxMessage; most > 0 && packetSize(p) > most {
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, packetSize(p), most)
	}
	return conn.publish(p, func(err error) {
		if err == nil {
			c.metrics.sent(e.Type)
		}
		done(err)
	})
}
