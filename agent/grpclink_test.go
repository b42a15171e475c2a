package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/test/testsite"
)

// moodyServer is a server of agents that can fall silent, and refuse.
type moodyServer struct {
	cloudevents.UnimplementedCloudEventServiceServer

	mu         sync.Mutex
	beaten     chan struct{}
	beat       bool // sends heartbeats, every 10 ms
	refuse     error
	subscribed int
	published  []string // ids
	noHeader   bool
}

func (s *moodyServer) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *moodyServer) Subscribe(req *cloudevents.SubscriptionRequest,
	stream grpc.ServerStreamingServer[cloudevents.CloudEvent]) error {
	if req.GetClusterName() != "mc1" || req.GetDataType() != work.DataType {
		return status.Error(codes.InvalidArgument, "what do you want?")
	}
	header := metadata.Pairs("subscription-id", "1")
	s.set(func() {
		s.subscribed++
		if s.noHeader {
			header = nil
		}
	})
	if err := stream.SendHeader(header); err != nil {
		return err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case <-tick.C:
			s.mu.Lock()
			beat := s.beat
			s.mu.Unlock()
			if !beat {
				continue
			}
			if err := stream.Send(bus.Event{ID: "b", Type: work.Heartbeat}.Proto()); err != nil {
				return err
			}
			select {
			case s.beaten <- struct{}{}:
			default:
			}
		}
	}
}

func (s *moodyServer) Publish(_ context.Context, req *cloudevents.PublishRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.published = append(s.published, req.GetEvent().GetId())
	return &emptypb.Empty{}, s.refuse
}

func (s *moodyServer) start(t *testing.T, addr string) (at string, stop func()) {
	t.Helper()
	l := testsite.ListenOn(t, addr)
	g := grpc.NewServer()
	cloudevents.RegisterCloudEventServiceServer(g, s)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	stop = sync.OnceFunc(func() { g.Stop(); <-done })
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// runLink runs a link; stood counts how often it stood.
func runLink(t *testing.T, o GRPCOptions) (l *grpcLink, stood chan struct{}) {
	t.Helper()
	stood = make(chan struct{}, 1000)
	l = newGRPCLink(o, "mc1", func(context.Context, bus.Message) {}, func(ctx context.Context) {
		stood <- struct{}{}
		<-ctx.Done()
	}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return l, stood
}

func awaitToken(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("did not happen: %s", what)
	}
}

// The link connects again when a server stops sending heartbeats. It stays connected to a server
// that has never sent one.
func TestALinkWithoutHeartbeatsReconnects(t *testing.T) {
	s := &moodyServer{beat: true, beaten: make(chan struct{}, 1)}
	at, _ := s.start(t, "")
	_, stood := runLink(t, GRPCOptions{URL: at, Health: 100 * time.Millisecond, MaxBackoff: 50 * time.Millisecond})
	awaitToken(t, "subscribed", stood)
	awaitToken(t, "a heartbeat", s.beaten)
	awaitToken(t, "another, so that the first has arrived", s.beaten)
	// On a busy machine the link may have missed heartbeats before: subscriptions count from the end of the heartbeats.
	subscribed := func() (n int) { s.set(func() { n = s.subscribed }); return n }
	var before int
	s.set(func() { s.beat, before = false, s.subscribed })
	testsite.Eventually(t, "subscribed again", func() error {
		if n := subscribed(); n == before {
			return fmt.Errorf("%d subscriptions", n)
		}
		return nil
	})
	// A heartbeat that was on its way may count for one more.
	<-time.After(500 * time.Millisecond)
	if n := subscribed() - before; n > 2 {
		t.Errorf("a server without heartbeats is left: %d subscriptions since the last heartbeat", n)
	}
}

func TestALinkReconnectsAfterItsServerRestarts(t *testing.T) {
	s := &moodyServer{beat: true}
	at, stop := s.start(t, "")
	l, stood := runLink(t, GRPCOptions{URL: at, MaxBackoff: 50 * time.Millisecond})
	awaitToken(t, "subscribed", stood)
	publish := func(id string) error {
		done := make(chan error, 1)
		if err := l.publish(t.Context(), bus.Event{ID: id, Source: "mc1-agent", Type: work.Seen},
			func(err error) { done <- err }); err != nil {
			return err
		}
		return <-done
	}
	if err := publish("1"); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		code codes.Code
		want error
	}{
		{codes.InvalidArgument, errRejected}, {codes.PermissionDenied, bus.ErrNotAuthorized}, {codes.ResourceExhausted,
			bus.ErrTooLarge}, {codes.Unavailable, bus.ErrDisconnected},
	} {
		s.set(func() { s.refuse = status.Error(c.code, "no") })
		if err := publish("2"); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.code, err)
		}
	}
	s.set(func() { s.refuse = nil })
	stop()
	for l.Connected() { // ends by the test's own timeout, if at all
		if l.Check(t.Context()) != nil {
			break
		}
	}
	if err := publish("3"); !errors.Is(err, bus.ErrDisconnected) {
		t.Errorf("without a server: %v", err)
	}
	s2 := &moodyServer{}
	s2.start(t, at)
	awaitToken(t, "subscribed to the new one", stood)
	if err := publish("4"); err != nil {
		t.Error(err)
	}
}

func TestASubscriptionWithoutAnIDIsRefused(t *testing.T) {
	s := &moodyServer{noHeader: true, beat: true}
	at, _ := s.start(t, "")
	l, stood := runLink(t, GRPCOptions{URL: at, MaxBackoff: 20 * time.Millisecond})
	for {
		s.mu.Lock()
		n := s.subscribed
		s.mu.Unlock()
		if n > 2 {
			break
		}
	}
	if len(stood) > 0 || l.Connected() {
		t.Error("it counts as one")
	}
}

func TestGRPCConfigFiles(t *testing.T) {
	c, err := ParseGRPCConfig([]byte(`
url: maestro.example:8091
caFile: ca.pem
clientCertFile: tls.crt
clientKeyFile: tls.key
keepAliveConfig:
  enable: true
  time: 20s
  permitWithoutStream: true
serverHealthinessTimeout: 30s
`))
	if err != nil || c.URL != "maestro.example:8091" || c.KeepAlive.Time != 20*time.Second ||
		c.Health != 30*time.Second || c.ClientKeyFile != "tls.key" {
		t.Errorf("%+v %v", c, err)
	}
	for text, want := range map[string]string{
		"":                                     "the file is empty",
		"caFile: x":                            "url is missing",
		"url: https://x":                       "is not host:port",
		"url: x:1\nurls: y":                    "line 2: unknown key urls",
		"url: x:1\nclientCertFile: a":          "needs its key",
		"url: x:1\ntokenFile: a":               "needs caFile",
		"url: x:1\nkeepAliveConfig: {time: 1}": "line 2: `1` is not a duration",
		"url: [1]":                             "line 1",
		"url: x:1\nserverHealthinessTimeout: -1s": "negative",
	} {
		_, err := ParseGRPCConfig([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v instead of %s", text, err, want)
		}
	}
}

func FuzzGRPCConfig(f *testing.F) {
	f.Add("url: a:1\ncaData: |\n  -----BEGIN CERTIFICATE-----\n")
	f.Add("url: a:1\ncaData: QUJD\nclientCertData: a\nclientKeyData: b\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseGRPCConfig([]byte(text))
		if err != nil {
			return
		}
		if c.URL == "" {
			t.Error("no url, no error")
		}
		if c.CAFile+c.ClientCertFile+c.ClientKeyFile == "" {
			_, _ = c.Options(nil)
		}
	})
}
