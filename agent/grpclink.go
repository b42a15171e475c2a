package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/reconnect"
)

// GRPCOptions configure the connection to a Maestro's gRPC port for agents.
type GRPCOptions struct {
	URL       string                      // host:port
	TLS       *tls.Config                 // nil: plain, for tests on one machine
	Token     func() (string, error)      // a bearer token, read for each call; nil: none
	KeepAlive *keepalive.ClientParameters // pings; default every 30 s
	// Health is how long a server that has sent heartbeats may send none before the
	// connection is made again; default 20 s.
	Health time.Duration
	// The pause before a connection is made again grows from MinBackoff to
	// MaxBackoff, each spread by half. Default 20 ms and 5 s.
	MinBackoff, MaxBackoff time.Duration
}

func (o GRPCOptions) withDefaults() GRPCOptions {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.Health, 20*time.Second)
	def(&o.MinBackoff, 20*time.Millisecond)
	def(&o.MaxBackoff, 5*time.Second)
	if o.KeepAlive == nil {
		o.KeepAlive = &keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}
	}
	return o
}

const (
	grpcWindow    = 256              // published events without an answer
	grpcSubscribe = 10 * time.Second // from the call to the subscription
	grpcPublish   = 30 * time.Second // from the publish to its answer
	maxGRPCEvent  = 64 << 20
)

// errRejected means that the server will never accept an event.
var errRejected = errors.New("the server refuses the event")

// grpcLink is the agent's connection to a Maestro's gRPC port for agents. The server
// answers a published event once it is durable.
type grpcLink struct {
	o         GRPCOptions
	consumer  work.Consumer
	receive   func(context.Context, bus.Message)
	connected func(context.Context)
	log       *slog.Logger
	window    chan struct{}
	calls     sync.WaitGroup

	mu     sync.Mutex
	client cloudevents.CloudEventServiceClient // nil while not subscribed
	ctx    context.Context                     // of the subscription
	why    error
}

func newGRPCLink(o GRPCOptions, consumer work.Consumer, receive func(context.Context, bus.Message),
	connected func(context.Context), log *slog.Logger) *grpcLink {
	return &grpcLink{
		o: o.withDefaults(), consumer: consumer, receive: receive, connected: connected, log: log,
		window: make(chan struct{},
			grpcWindow), why: errors.New("not connected yet"),
	}
}

// Run subscribes and stays subscribed until ctx ends.
func (l *grpcLink) Run(ctx context.Context) error {
	defer l.calls.Wait()
	reconnect.Run(ctx, reconnect.Options{MinBackoff: l.o.MinBackoff, MaxBackoff: l.o.MaxBackoff, Log: l.log,
		Message: "server connection lost", Attrs: []any{"server", l.o.URL}}, l.serve)
	return nil
}

// serve subscribes once, on a new connection so that a renewed certificate is used, and
// returns when the subscription has ended.
func (l *grpcLink) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := grpc.NewClient(l.o.URL, l.dialOptions()...)
	if err != nil {
		return l.down(err)
	}
	defer conn.Close()
	client := cloudevents.NewCloudEventServiceClient(conn)
	slow := time.AfterFunc(
		grpcSubscribe,
		func() { cancel(errors.New("the server did not answer the subscription in time")) },
	)
	defer slow.Stop()
	stream, err := client.Subscribe(ctx, &cloudevents.SubscriptionRequest{ClusterName: string(l.consumer),
		DataType: work.DataType})
	if err != nil {
		return l.down(err)
	}
	header, err := stream.Header()
	if err == nil && len(header.Get("subscription-id")) == 0 {
		if _, err = stream.Recv(); err == nil {
			err = errors.New("the server sent no subscription-id")
		}
	}
	if err != nil {
		return l.down(cause(ctx, err))
	}
	slow.Stop()
	l.mu.Lock()
	l.client, l.ctx, l.why = client, ctx, nil
	l.mu.Unlock()
	l.log.Info("server connected", "server", l.o.URL, "subscription", header.Get("subscription-id")[0])
	var calls sync.WaitGroup
	calls.Go(func() { l.connected(ctx) })
	err = l.read(ctx, cancel, stream)
	l.down(err)
	cancel(nil)
	calls.Wait()
	return err
}

// read passes events to receive until the stream ends or the heartbeats stop.
func (l *grpcLink) read(ctx context.Context, cancel context.CancelCauseFunc,
	stream grpc.ServerStreamingClient[cloudevents.CloudEvent]) error {
	var beats atomic.Bool // false while the server has sent no heartbeat: its heartbeats may be off
	health := time.AfterFunc(l.o.Health, func() {
		if beats.Load() {
			cancel(fmt.Errorf("the server has sent nothing for %s", l.o.Health))
		}
	})
	defer health.Stop()
	for {
		p, err := stream.Recv()
		if err != nil {
			return cause(ctx, err)
		}
		health.Reset(l.o.Health)
		if p.GetType() == work.Heartbeat {
			beats.Store(true)
			continue
		}
		e, err := bus.FromProto(p)
		if err != nil {
			l.log.Warn("message dropped", "error", err)
			continue
		}
		l.receive(ctx, bus.Message{Event: e, Ack: func() {}})
	}
}

// cause returns the reason for which the subscription was cancelled, or else err.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil && !errors.Is(c, context.Canceled) {
		return c
	}
	return err
}

func (l *grpcLink) dialOptions() []grpc.DialOption {
	options := []grpc.DialOption{
		grpc.WithKeepaliveParams(*l.o.KeepAlive),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxGRPCEvent)),
		grpc.WithDisableServiceConfig(),
	}
	if l.o.TLS == nil {
		return append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(l.o.TLS)))
	if l.o.Token != nil {
		options = append(options, grpc.WithPerRPCCredentials(bearer(l.o.Token)))
	}
	return options
}

// bearer adds a token to each call. gRPC sends it over TLS only.
type bearer func() (string, error)

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := b()
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }

func (l *grpcLink) down(why error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.client, l.why = nil, why
	return why
}

// Connected reports whether events can be sent now.
func (l *grpcLink) Connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.client != nil
}

// Check returns nil while subscribed.
func (l *grpcLink) Check(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client == nil {
		return fmt.Errorf("server %s: %w", l.o.URL, l.why)
	}
	return nil
}

// publish sends an event and returns; done is called when the server has answered or the
// subscription has ended. publish blocks only while the window is full.
func (l *grpcLink) publish(ctx context.Context, e bus.Event, done func(error)) error {
	if err := e.Validate(); err != nil {
		return err
	}
	l.mu.Lock()
	client, stands, why := l.client, l.ctx, l.why
	l.mu.Unlock()
	if client == nil {
		return fmt.Errorf("%w: %w", bus.ErrDisconnected, why)
	}
	select {
	case l.window <- struct{}{}:
	case <-stands.Done():
		return bus.ErrDisconnected
	case <-ctx.Done():
		return ctx.Err()
	}
	l.calls.Go(func() {
		defer func() { <-l.window }()
		// The call ends with the subscription: the sender sends unanswered events again on the
		// next one.
		ctx, cancel := context.WithTimeout(stands, grpcPublish)
		defer cancel()
		_, err := client.Publish(ctx, &cloudevents.PublishRequest{Event: e.Proto()})
		done(publishError(err))
	})
	return nil
}

func publishError(err error) error {
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.InvalidArgument:
		return fmt.Errorf("%w: %w", errRejected, err)
	case codes.ResourceExhausted:
		return fmt.Errorf("%w: %w", bus.ErrTooLarge, err)
	case codes.PermissionDenied:
		return fmt.Errorf("%w: %w", bus.ErrNotAuthorized, err)
	case codes.Unavailable, codes.Canceled:
		return fmt.Errorf("%w: %w", bus.ErrDisconnected, err)
	}
	return err
}
