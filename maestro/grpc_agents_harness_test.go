package maestro

import (
	"atoll.dev/test/testsite"
	"context"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/pause"
	"atoll.dev/maestro/wire"
	"atoll.dev/pki"
)

// withAgents opens the agents' port; alone takes the broker away.
func withAgents(s *site) func(*Options) {
	return func(o *Options) {
		o.Agents, o.AgentsTLS = testsite.Listen(s.T), s.ServerTLS("maestro")
	}
}

func alone(o *Options) { o.Broker, o.BrokerTLS = "", nil }

func (i *instance) agentsTarget() string { return i.server.opts.Agents.Addr().String() }

func dialAs(t testing.TB, s *site, name pki.Name, target string) cloudevents.CloudEventServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(credentials.NewTLS(s.ClientTLS(name, "maestro"))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return cloudevents.NewCloudEventServiceClient(conn)
}

// grpcLink is how a scriptedAgent speaks gRPC. Its servers can be changed.
type grpcLink struct {
	mu      sync.Mutex
	target  string
	client  cloudevents.CloudEventServiceClient
	beats   int
	refused []error
	out     chan bus.Event
}

// grpcAgent is a scripted agent on the agents' port of a server.
func (i *instance) grpcAgent(consumer work.Consumer) *scriptedAgent {
	a := &scriptedAgent{t: i.t, site: i.site, consumer: consumer, works: map[work.ID]*agentWork{},
		sequence: time.Now().UnixMilli() << 22}
	a.link = &grpcLink{target: i.agentsTarget(), out: make(chan bus.Event, 20000)}
	a.startGRPC()
	i.t.Cleanup(a.stop)
	return a
}

// moveTo ends the agent's connection and makes another.
func (a *scriptedAgent) moveTo(i *instance) {
	a.stop()
	a.link.target = i.agentsTarget()
	a.startGRPC()
}

func (a *scriptedAgent) startGRPC() {
	l := a.link
	conn, err := grpc.NewClient(l.target, grpc.WithTransportCredentials(
		credentials.NewTLS(a.site.ClientTLS(pki.Name(a.consumer), "maestro"))))
	if err != nil {
		a.t.Fatal(err)
	}
	l.client = cloudevents.NewCloudEventServiceClient(conn)
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	subscribed := make(chan struct{})
	var once sync.Once
	parts.Go(func() {
		for ctx.Err() == nil {
			err := a.subscribeGRPC(ctx, func() { once.Do(func() { close(subscribed) }) })
			if ctx.Err() == nil {
				a.site.Log.Info("the agent's stream ended", "consumer", a.consumer, "error", err)
			}
			pause.For(ctx, 20*time.Millisecond)
		}
	})
	parts.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case m := <-l.out:
				// An unanswered event is sent again, as real agents do.
				for ctx.Err() == nil {
					_, err := l.client.Publish(ctx, &cloudevents.PublishRequest{Event: wire.ToProto(m)})
					if err == nil {
						break
					}
					if !isCode(err, "Unavailable") && !isCode(err, "Canceled") {
						l.mu.Lock()
						l.refused = append(l.refused, err)
						l.mu.Unlock()
						break
					}
					pause.For(ctx, 20*time.Millisecond)
				}
			}
		}
	})
	a.end = func() { cancel(); parts.Wait(); conn.Close() }
	select {
	case <-subscribed:
	case <-time.After(patience):
		a.t.Fatal("the agent is not subscribed")
	}
}

func (a *scriptedAgent) subscribeGRPC(ctx context.Context, subscribed func()) error {
	stream, err := a.link.client.Subscribe(ctx, &cloudevents.SubscriptionRequest{ClusterName: string(a.consumer),
		DataType: work.DataType})
	if err != nil {
		return err
	}
	header, err := stream.Header()
	if err != nil {
		return err
	}
	if len(header.Get("subscription-id")) != 1 {
		_, err := stream.Recv()
		return err
	}
	subscribed()
	a.resync(ctx)
	for {
		e, err := stream.Recv()
		if err != nil {
			return err
		}
		if e.GetType() == work.Heartbeat {
			a.link.mu.Lock()
			a.link.beats++
			a.link.mu.Unlock()
			continue
		}
		m, err := wire.FromProto(e)
		if err != nil {
			a.t.Errorf("agent %s: %v", a.consumer, err)
			continue
		}
		a.take(ctx, m)
	}
}
