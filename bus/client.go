package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"atoll.dev/internal/reconnect"
)

var (
	// ErrDisconnected means that the event did not reach the broker, or that the connection
	// ended before the broker acknowledged it.
	ErrDisconnected = errors.New("not connected to the broker")
	// ErrTooLarge means that the event exceeds the broker's limit and was not sent.
	ErrTooLarge = errors.New("the event is larger than the broker takes")
	// ErrUnacknowledged means that the broker did not acknowledge the event within
	// ClientOptions.AckTimeout. The event may have been delivered.
	ErrUnacknowledged = errors.New("the broker did not acknowledge the event in time")
	// ErrNotAuthorized means that the broker's rules do not allow the topic.
	ErrNotAuthorized = errors.New("the broker does not allow this topic")
	// ErrNoSubscriber means that the broker accepted the event, and no client has
	// subscribed to its topic. Only clients with ClientOptions.RequireSubscriber get it.
	ErrNoSubscriber = errors.New("no client has subscribed to this topic")
)

// ClientOptions configure a client: the broker, the client's identity, its subscriptions
// and handlers.
type ClientOptions struct {
	Addr string      // host:port
	TLS  *tls.Config // nil: plain TCP, unless there are Keys
	// Keys replace TLS. They are read for each connection; when they change, the client
	// connects again.
	Keys               func() (Keys, error)
	Username, Password string   // for brokers that require them
	ClientID           string   // a second connection with the same id ends the first
	Subscriptions      []string // topic filters, QoS 1

	// RequireSubscriber makes a publish fail with ErrNoSubscriber when the broker answers
	// "no matching subscribers" (MQTT's reason 0x10). Atoll's broker does so for the events
	// of adapters.
	RequireSubscriber bool

	// Structured sends events as JSON objects. Without it, attributes are user
	// properties. The client always reads both.
	Structured bool

	// Handler gets each event, one at a time and in order. It must return quickly: the
	// client reads nothing while it runs. The handler, or the goroutine to which it passes
	// the message, calls Ack once the effect of the event is durable.
	Handler func(ctx context.Context, m Message)

	// OnConnected is called after each connect, once all subscriptions are
	// acknowledged. It must ask for the events that were lost while the client was
	// disconnected. It runs concurrently with the handler; its context ends with the
	// connection.
	OnConnected func(ctx context.Context)

	Logger     *slog.Logger
	Registerer prometheus.Registerer

	DialTimeout time.Duration // for connecting and subscribing; default 5 s
	KeepAlive   time.Duration // default 10 s; a connection without packets ends after 1.5 times that
	// MaxMessage bounds an encoded event, in bytes, for brokers that announce no limit; 0:
	// only the broker's limit.
	MaxMessage int
	Window     int           // unacknowledged events; default 1,000, at most the broker's Receive Maximum
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

// Message is a received event. Ack acknowledges it to the broker. Any goroutine may
// call Ack, in any order (the client sends acknowledgements in the order that MQTT
// requires); it does nothing after the connection has ended.
type Message struct {
	Topic string
	Event Event
	Ack   func()
}

// Client keeps a connection to a broker and connects again when it is lost. Use
// NewClient, then Run; the other methods are safe for concurrent use.
type Client struct {
	o       ClientOptions
	metrics *clientMetrics
	badLog  *rate.Limiter // limits the log lines about undecodable messages

	keysEvery time.Duration // interval at which the keys on disk are read

	mu      sync.Mutex
	conn    *connection // nil while disconnected
	lastErr error       // why conn is nil
	lostAt  time.Time   // when the last connection ended
	limit   int         // the broker's packet limit at the last connect; 0: unknown
}

// NewClient returns a client that does nothing until Run.
func NewClient(o ClientOptions) *Client {
	o = o.withDefaults()
	return &Client{
		o: o, lastErr: errors.New("not connected yet"), lostAt: time.Now(), badLog: rate.NewLimiter(
			1, 5),
		metrics: newClientMetrics(o.Registerer), keysEvery: keysInterval,
	}
}

// Run connects and stays connected until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	reconnect.Run(ctx, reconnect.Options{MinBackoff: c.o.MinBackoff, MaxBackoff: c.o.MaxBackoff, Log: c.o.Logger,
		Message: "broker connection lost", Attrs: []any{"broker", c.o.Addr}}, c.serve)
	return nil
}

// serve connects once and returns when the connection has ended.
func (c *Client) serve(ctx context.Context) error {
	conn, err := dial(ctx, c)
	if err != nil {
		c.markDisconnected(err)
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var calls sync.WaitGroup
	err = conn.run(ctx, func() {
		c.metrics.connects.Inc()
		c.mu.Lock()
		c.conn, c.lastErr, c.limit = conn, nil, int(conn.limit)
		c.mu.Unlock()
		c.o.Logger.Info("broker connected", "broker", c.o.Addr, "client_id", c.o.ClientID)
		calls.Go(func() { c.o.OnConnected(ctx) })
	})
	c.markDisconnected(err)
	conn.fail()
	cancel()
	calls.Wait()
	return err
}

// markDisconnected records that there is no connection, and why.
func (c *Client) markDisconnected(why error) {
	if why == nil {
		why = errors.New("closed")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.lostAt = time.Now()
	}
	c.conn, c.lastErr = nil, why
}

// Connected reports whether events can be sent now.
func (c *Client) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn != nil
}

// DownFor returns for how long there has been no connection; 0 while connected.
func (c *Client) DownFor() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		return 0
	}
	return time.Since(c.lostAt)
}

// Check is a readiness check: nil when connected and subscribed.
func (c *Client) Check(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return fmt.Errorf("broker %s: %w", c.o.Addr, c.lastErr)
	}
	return nil
}

// Limit returns the size of the largest event that can be sent, in bytes as Event.Size
// counts them: the smaller one of MaxMessage and the limit that the broker announced at
// the last connect; 0 when neither is known.
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
// with ErrDisconnected, ErrUnacknowledged, ErrTooLarge, ErrNotAuthorized,
// ErrNoSubscriber or the error of ctx. Only after ErrTooLarge, ErrNotAuthorized and
// ErrNoSubscriber is it certain that the event was not delivered.
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
// after it was written (ErrUnacknowledged), or when the connection ends. done must
// not block. PublishAsync itself blocks only while the window is full. When it
// returns an error, done is not called. Events of one caller are sent in order.
func (c *Client) PublishAsync(ctx context.Context, topic string, e Event, done func(error)) error {
	return c.PublishLate(ctx, topic, func() (Event, error) { return e, nil }, done)
}

// PublishLate waits for the window, then calls event, and sends its result as
// PublishAsync does: a caller that waited long can build the event from the present
// state. When event returns an error, PublishLate sends nothing and returns that error.
func (c *Client) PublishLate(ctx context.Context, topic string, event func() (Event, error), done func(error)) error {
	c.mu.Lock()
	conn, why := c.conn, c.lastErr
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

// publish encodes an event and sends it by a connection on which the caller has reserved
// a place.
func (c *Client) publish(conn *connection, topic string, e Event, done func(error)) error {
	encode := e.packet
	if c.o.Structured {
		encode = e.structuredPacket
	}
	p, err := encode(topic)
	if err != nil {
		return err
	}
	if limit := c.o.MaxMessage; limit > 0 && packetSize(p) > limit {
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, packetSize(p), limit)
	}
	return conn.publish(p, func(err error) {
		if err == nil {
			c.metrics.countSent(e.Type)
		}
		done(err)
	})
}
