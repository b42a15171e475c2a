package bus

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"go.uber.org/goleak"

	"atoll.dev/api/work"
	"atoll.dev/internal/mosquitto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority signs test certificates.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, NotBefore: time.Now().Add(
			-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{key, cert}
}

func (a *authority) certificate(t testing.TB, name string) tls.Certificate {
	return a.certificateUntil(t, name, time.Now().Add(time.Hour))
}

func (a *authority) certificateUntil(t testing.TB, name string, expires time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{
			CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: expires,
		DNSNames: []string{"broker"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{
			x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

func (a *authority) client(t testing.TB, name string) *tls.Config {
	return &tls.Config{RootCAs: a.pool(), ServerName: "broker", Certificates: []tls.Certificate{a.certificate(t, name)}}
}

// testBroker is a broker on a port of its own that can be stopped and started.
type testBroker struct {
	t    testing.TB
	ca   *authority
	addr string
	opts BrokerOptions
	stop func()

	foreign bool // Mosquitto
	kept    *mosquitto.Broker
}

// eachBroker runs a test with our broker and with Mosquitto.
func eachBroker(t *testing.T, opts BrokerOptions, test func(*testing.T, *testBroker)) {
	t.Run("embedded", func(t *testing.T) { test(t, startBroker(t, opts)) })
	t.Run("mosquitto", func(t *testing.T) {
		b := &testBroker{t: t, ca: newAuthority(t), opts: opts, foreign: true}
		b.start()
		t.Cleanup(func() {
			b.stop()
			if err := b.kept.Close(); err != nil {
				t.Error(err)
			}
		})
		test(t, b)
	})
}

// startForeign starts Mosquitto, or starts it again.
func (b *testBroker) startForeign() {
	b.t.Helper()
	b.stop = sync.OnceFunc(func() { b.kept.Kill() })
	if b.kept != nil {
		if err := b.kept.Start(); err != nil {
			b.t.Fatal(err)
		}
		return
	}
	own := b.ca.certificate(b.t, "system:broker")
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		b.t.Fatal(err)
	}
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	b.kept, err = mosquitto.Start(mosquitto.Options{
		CA: block("CERTIFICATE", b.ca.cert.Raw), Cert: block("CERTIFICATE", own.Certificate[0]), Key: block(
			"PRIVATE KEY", key), MaxPacket: int(b.opts.MaxPacket),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.addr = b.kept.Addr
}

func startBroker(t testing.TB, opts BrokerOptions) *testBroker {
	t.Helper()
	b := &testBroker{t: t, ca: newAuthority(t), addr: "127.0.0.1:0", opts: opts}
	b.opts.TLS = &tls.Config{
		Certificates: []tls.Certificate{b.ca.certificate(
			t, "system:broker")}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: b.ca.pool(),
	}
	b.start()
	t.Cleanup(func() { b.stop() })
	return b
}

// listen listens on an address, or on a free port when it ends in :0. The port is none of those that the system gives
// to outgoing connections, so that the test can listen on it again after a stop. (Package testsite does this for other
// packages; it imports this one.)
func listen(t testing.TB, address string) (l net.Listener) {
	t.Helper()
	anyPort := strings.HasSuffix(address, ":0")
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var err error
	for range 1000 {
		if anyPort {
			address = fmt.Sprintf("127.0.0.1:%d", 12000+mathrand.IntN(18000))
		}
		if l, err = net.Listen("tcp", address); err == nil {
			return l
		}
		<-tick.C
	}
	t.Fatal(err)
	return nil
}

func (b *testBroker) start() {
	b.t.Helper()
	if b.foreign {
		b.startForeign()
		return
	}
	l := listen(b.t, b.addr)
	b.addr = l.Addr().String()
	broker, err := NewBroker(b.opts)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- broker.Serve(ctx, l) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
	})
}

// connect runs a client until the test ends and returns it connected.
func (b *testBroker) connect(name string, o ClientOptions) *Client {
	b.t.Helper()
	o.Addr, o.TLS = b.addr, b.ca.client(b.t, name)
	if o.ClientID == "" {
		o.ClientID = agentClientID(work.Consumer(name))
	}
	up := make(chan struct{}, 100)
	then := o.OnConnected
	o.OnConnected = func(ctx context.Context) {
		if then != nil {
			then(ctx)
		}
		up <- struct{}{}
	}
	c := NewClient(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	b.t.Cleanup(func() { cancel(); <-done })
	receive(b.t, up)
	return c
}

// hangLimit is how long a test waits for an event. Only a hang exceeds it, on a machine under any load.
const hangLimit = 3 * time.Minute

// receive returns the next value of a channel and fails the test if none arrives.
func receive[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(hangLimit):
		t.Fatal("no value within the time limit")
		panic("unreachable")
	}
}

func testEvent(id string) Event {
	return Event{ID: id, Source: "maestro", Type: "test.type", DataContentType: "application/json",
		Data: []byte(`{"a":1}`), Extensions: map[string]string{"clustername": "c1", "originalsource": ""}}
}

func agentTopic(consumer work.Consumer) string {
	return Topic{Source: "maestro", Consumer: consumer, Kind: AgentEvents}.String()
}

func sourceTopic(consumer work.Consumer) string {
	return Topic{Source: "maestro", Consumer: consumer, Kind: SourceEvents}.String()
}

func TestEventsTravelInBothDirections(t *testing.T) {
	eachBroker(t, BrokerOptions{}, func(t *testing.T, b *testBroker) {
		toServer, toAgent := make(chan Message, 1), make(chan Message, 1)
		server := b.connect("system:maestro", ClientOptions{ClientID: "maestro",
			Subscriptions: []string{Topic{Source: "maestro", Consumer: AllConsumers,
				Kind: AgentEvents}.Share().Filter()},
			Handler: func(_ context.Context, m Message) { m.Ack(); toServer <- m }})
		agent := b.connect("c1", ClientOptions{Subscriptions: []string{sourceTopic("c1")},
			Handler: func(_ context.Context, m Message) { m.Ack(); toAgent <- m }})
		if err := server.Publish(t.Context(), sourceTopic("c1"), testEvent("1")); err != nil {
			t.Fatal(err)
		}
		if m := receive(t, toAgent); m.Event.ID != "1" || m.Topic != sourceTopic("c1") ||
			string(m.Event.Data) != `{"a":1}` {
			t.Errorf("the agent got %+v", m)
		}
		if err := agent.Publish(t.Context(), agentTopic("c1"), testEvent("2")); err != nil {
			t.Fatal(err)
		}
		m := receive(t, toServer)
		if v, ok := m.Event.Extensions["originalsource"]; m.Event.ID != "2" || !ok || v != "" {
			t.Errorf("the server got %+v", m)
		}
	})
}

func TestThousandsOfEventsInFlightArriveInOrder(t *testing.T) {
	eachBroker(t, BrokerOptions{}, func(t *testing.T, b *testBroker) {
		const n = 5000
		got := make(chan string, n)
		b.connect("c1", ClientOptions{Subscriptions: []string{sourceTopic("c1")}, Handler: func(_ context.Context,
			m Message) {
			go m.Ack() // by anybody, in any order
			got <- m.Event.ID
		}})
		server := b.connect("system:maestro", ClientOptions{ClientID: "maestro"})
		acks := make(chan error, n)
		for i := range n {
			if err := server.PublishAsync(t.Context(), sourceTopic("c1"), testEvent(fmt.Sprint(i)),
				func(err error) { acks <- err }); err != nil {
				t.Fatal(err)
			}
		}
		for i := range n {
			if id := receive(t, got); id != fmt.Sprint(i) {
				t.Fatalf("message %d is %s", i, id)
			}
			if err := receive(t, acks); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Both directions use packet ids at once here, which is where the broker's
// library loses count.
func TestTrafficInBothDirectionsDoesNotStall(t *testing.T) {
	eachBroker(t, BrokerOptions{}, func(t *testing.T, b *testBroker) {
		const n = 1000
		var left sync.WaitGroup
		left.Add(2 * n)
		handle := func(_ context.Context, m Message) { m.Ack(); left.Done() }
		agent := b.connect("c1", ClientOptions{Subscriptions: []string{sourceTopic("c1")}, Handler: handle})
		server := b.connect("system:maestro", ClientOptions{ClientID: "maestro", Subscriptions: []string{
			Topic{Source: "maestro", Consumer: AllConsumers, Kind: AgentEvents}.Share().Filter()}, Handler: handle})
		send := func(c *Client, topic string) {
			for i := range n {
				if err := c.PublishAsync(t.Context(), topic, testEvent(fmt.Sprint(i)), func(error) {}); err != nil {
					t.Error(err)
				}
			}
		}
		go send(agent, agentTopic("c1"))
		go send(server, sourceTopic("c1"))
		done := make(chan struct{})
		go func() { left.Wait(); close(done) }()
		receive(t, done)
	})
}

func TestAcknowledgementsKeepTheOrderOfArrival(t *testing.T) {
	out := make(chan *packets.ControlPacket, 10)
	here, there := net.Pipe()
	defer there.Close()
	c := &connection{conn: here, out: out, closed: make(chan struct{}), inflight: newInflight(time.Second)}
	in := []*inbound{{id: 5}, {id: 6}, {id: 7}}
	c.inbox = append(c.inbox, in...)
	c.ack(in[2])
	c.ack(in[1])
	if len(out) != 0 {
		t.Fatal("acknowledged before the first was")
	}
	c.ack(in[0])
	for _, want := range []uint16{5, 6, 7} {
		if got := (<-out).Content.(*packets.Puback).PacketID; got != want {
			t.Errorf("acknowledged %d, want %d", got, want)
		}
	}
	c.fail()
	in[0].acked = false
	c.ack(in[0]) // does nothing
}

func TestI6AClientReconnectsAndCallsOnConnected(t *testing.T) {
	eachBroker(t, BrokerOptions{}, func(t *testing.T, b *testBroker) {
		connected := make(chan struct{}, 10)
		got := make(chan Message, 10)
		server := b.connect("system:maestro", ClientOptions{ClientID: "maestro"})
		agent := b.connect("c1", ClientOptions{Subscriptions: []string{sourceTopic("c1")},
			OnConnected: func(context.Context) { connected <- struct{}{} },
			Handler:     func(_ context.Context, m Message) { m.Ack(); got <- m }})
		receive(t, connected)
		b.stop()
		for agent.Connected() || server.Connected() {
			if err := agent.Publish(t.Context(), agentTopic("c1"), testEvent("x")); err != nil &&
				!errors.Is(err, ErrDisconnected) {
				t.Fatalf("publish to a broker that is gone: %v", err)
			}
		}
		if err := agent.Check(t.Context()); err == nil {
			t.Error("a client without a broker is ready")
		}
		b.start()
		receive(t, connected)
		for { // the server may come back later
			if err := server.Publish(t.Context(), sourceTopic("c1"), testEvent("after")); err == nil {
				break
			} else if !errors.Is(err, ErrDisconnected) {
				t.Fatal(err)
			}
		}
		if m := receive(t, got); m.Event.ID != "after" {
			t.Errorf("got %+v", m)
		}
	})
}

func TestPublishesInFlightFailWithTheConnection(t *testing.T) {
	eachBroker(t, BrokerOptions{}, func(t *testing.T, b *testBroker) {
		server := b.connect("system:maestro", ClientOptions{ClientID: "maestro"})
		results := make(chan error, 100)
		sent := 0
		go b.stop()
		for {
			if err := server.PublishAsync(t.Context(), sourceTopic("c1"), testEvent("x"),
				func(err error) { results <- err }); err != nil {
				if !errors.Is(err, ErrDisconnected) {
					t.Fatal(err)
				}
				break
			}
			sent++
			if len(results) > 50 {
				for len(results) > 0 {
					<-results
					sent--
				}
			}
		}
		for range sent { // each gets exactly one answer
			if err := receive(t, results); err != nil && !errors.Is(err, ErrDisconnected) {
				t.Error(err)
			}
		}
	})
}

func TestATooLargeEventIsRefusedBeforeItIsSent(t *testing.T) {
	eachBroker(t, BrokerOptions{MaxPacket: 10_000}, func(t *testing.T, b *testBroker) {
		server := b.connect("system:maestro", ClientOptions{ClientID: "maestro"})
		e := testEvent("large")
		e.Data = make([]byte, 10_000)
		if err := server.Publish(t.Context(), sourceTopic("c1"), e); !errors.Is(err, ErrTooLarge) {
			t.Errorf("a large event: %v", err)
		}
		if err := server.Publish(t.Context(), sourceTopic("c1"), testEvent("small")); err != nil {
			t.Errorf("and then a small one: %v", err)
		}
	})
}

// A message that one subscriber does not get must show: it is disconnected.
func TestI6ASlowSubscriberIsDisconnectedNotSkipped(t *testing.T) {
	b := startBroker(t, BrokerOptions{MaxPending: 1 << 20})
	connected := make(chan struct{}, 100)
	blocked, release := make(chan struct{}, 1), make(chan struct{})
	b.connect("c1", ClientOptions{Subscriptions: []string{sourceTopic("c1")}, OnConnected: func(context.Context) {
		connected <- struct{}{}
	},
		Handler: func(ctx context.Context, m Message) {
			select {
			case blocked <- struct{}{}:
			default:
			}
			select {
			case <-release:
			case <-ctx.Done():
			}
			m.Ack()
		}})
	receive(t, connected)
	server := b.connect("system:maestro", ClientOptions{ClientID: "maestro"})
	e := testEvent("big")
	e.Data = make([]byte, 256<<10)
	for range 200 { // more than the sockets' buffers and its queue hold
		if err := server.Publish(t.Context(), sourceTopic("c1"), e); err != nil {
			t.Fatal(err)
		}
	}
	receive(t, blocked)
	close(release)
	receive(t, connected) // it was dropped, came back, and will resync
}

func BenchmarkPipelined(bench *testing.B) {
	b := startBroker(bench, BrokerOptions{})
	got := make(chan struct{}, 1024)
	b.connect("c1", ClientOptions{Subscriptions: []string{sourceTopic("c1")}, Handler: func(_ context.Context,
		m Message) {
		m.Ack()
		got <- struct{}{}
	}})
	server := b.connect("system:maestro", ClientOptions{ClientID: "maestro"})
	e := testEvent("bench")
	e.Data = make([]byte, 512)
	ahead := make(chan struct{}, 1000) // as Maestro does: no more than a consumer can take
	bench.ResetTimer()
	go func() {
		for range bench.N {
			ahead <- struct{}{}
			if err := server.PublishAsync(bench.Context(), sourceTopic("c1"), e, func(error) {}); err != nil {
				bench.Error(err)
				return
			}
		}
	}()
	for range bench.N {
		<-got
		<-ahead
	}
}
