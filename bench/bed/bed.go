// Package bed runs a region's Maestro with all that it needs for a benchmark: PostgreSQL with its default durability,
// a broker, one server, a CA, and what sources and agents say, over mutual TLS as in production.
//
// The programs below bench use it, nothing else does. Server and broker run in the benchmark's
// process or, to be weighed and killed, as processes of their own: the same program, started again
// (see RunPart), or Mosquitto.
package bed

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"atoll.dev/api/cloudevents"
	"atoll.dev/bus"
	"atoll.dev/internal/mosquitto"
	"atoll.dev/internal/postgres"
	"atoll.dev/pki"
)

// Source is the source of all works.
const Source = "bench"

// Brokers that there are.
const (
	Embedded  = "embedded"
	Mosquitto = "mosquitto"
)

// Options are those of New.
type Options struct {
	Broker  string // Embedded (default) or Mosquitto
	Seed    uint64 // of what works contain
	Apart   bool   // server and broker are processes of their own
	Verbose bool   // their warnings are shown
	Pprof   string // address at which a server apart serves profiles; "": it does not

	Servers       int           // that share the database and the broker; default 1. Sources call the first
	BrokerLatency time.Duration // in each direction between servers and broker
	PublishRate   float64       // events that a server may publish in a second, as some brokers demand; 0: any number
}

// Bed is the region. Server and Broker are there when they are apart; the
// broker also when it is Mosquitto, which always is.
type Bed struct {
	URL    string // of the REST API
	HTTP   *http.Client
	Events cloudevents.CloudEventServiceClient
	DSN    string // of the server's database

	Server, Broker Process

	o       Options
	ca      *pki.CA
	broker  string // host:port
	closers []func() error
	mu      sync.Mutex
	random  *mathrand.Rand
}

// New starts a region. Close ends it and removes what it left.
func New(ctx context.Context, o Options) (b *Bed, err error) {
	b = &Bed{o: o, random: mathrand.New(mathrand.NewPCG(o.Seed, 0))}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	dir, err := os.MkdirTemp("", "atoll-bench-")
	if err != nil {
		return b, err
	}
	b.OnClose(func() error { return os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		return b, err
	}
	if b.ca, err = pki.OpenCA(filepath.Join(dir, "ca")); err != nil {
		return b, err
	}
	if err := b.postgres(ctx, dir); err != nil {
		return b, err
	}
	if err := b.startBroker(ctx); err != nil {
		return b, err
	}
	toBroker := b.broker
	if o.BrokerLatency > 0 {
		k, err := newLink(b.broker, o.BrokerLatency)
		if err != nil {
			return b, err
		}
		b.OnClose(k.Close)
		toBroker = k.addr()
	}
	if err := b.startServer(ctx, toBroker); err != nil {
		return b, err
	}
	for range o.Servers - 1 {
		if err := b.startReplica(ctx, toBroker); err != nil {
			return b, err
		}
	}
	return b, nil
}

// Servers is how many servers there are.
func (b *Bed) Servers() int { return max(b.o.Servers, 1) }

// OnClose has f called by Close, before what was there earlier ends.
func (b *Bed) OnClose(f func() error) { b.closers = append(b.closers, f) }

// Close ends everything, the latest first.
func (b *Bed) Close() error {
	var errs []error
	for i := len(b.closers) - 1; i >= 0; i-- {
		errs = append(errs, b.closers[i]())
	}
	b.closers = nil
	return errors.Join(errs...)
}

func (b *Bed) postgres(ctx context.Context, dir string) error {
	c := &postgres.Cluster{DataDir: filepath.Join(dir, "data"), SocketDir: filepath.Join(dir, "s")}
	if err := c.Init(ctx); err != nil {
		return err
	}
	p, err := c.Start(ctx, io.Discard)
	if err != nil {
		return err
	}
	b.OnClose(func() error { p.Stop(); return nil })
	b.DSN = c.DSN("maestro", "maestro")
	return c.EnsureDatabase(ctx, "maestro", "maestro")
}

func (b *Bed) startBroker(ctx context.Context) error {
	cert, key, err := b.certificate(pki.ServiceName("broker"))
	if err != nil {
		return err
	}
	if b.o.Broker == Mosquitto {
		m, err := mosquitto.Start(mosquitto.Options{CA: b.ca.CertPEM(), Cert: cert, Key: key})
		if err != nil {
			return err
		}
		b.OnClose(m.Close)
		b.Broker, b.broker = m, m.Addr
		return nil
	}
	addrs, err := freeAddrs(1)
	if err != nil {
		return err
	}
	b.broker = addrs[0]
	b.Broker, err = b.start(ctx, part{Role: roleBroker, Listen: b.broker, CA: b.ca.CertPEM(), Cert: cert, Key: key})
	return err
}

// serverPart is what a server needs to know. toBroker is where it finds the broker.
func (b *Bed) serverPart(toBroker string) (part, error) {
	cert, key, err := b.certificate(pki.ServiceName("maestro"))
	if err != nil {
		return part{}, err
	}
	addrs, err := freeAddrs(2)
	if err != nil {
		return part{}, err
	}
	return part{
		Role: roleServer, DSN: b.DSN, Broker: toBroker, PublishRate: b.o.PublishRate, Listen: addrs[0], GRPC: addrs[1],
		CA: b.ca.CertPEM(), Cert: cert, Key: key, Pprof: b.o.Pprof,
	}, nil
}

// startReplica starts a server that no source calls.
func (b *Bed) startReplica(ctx context.Context, toBroker string) error {
	p, err := b.serverPart(toBroker)
	if err != nil {
		return err
	}
	_, err = b.start(ctx, p)
	return err
}

// startServer starts the server that sources call, and makes their clients.
func (b *Bed) startServer(ctx context.Context, toBroker string) error {
	p, err := b.serverPart(toBroker)
	if err != nil {
		return err
	}
	if b.Server, err = b.start(ctx, p); err != nil {
		return err
	}
	config, err := b.ClientTLS(pki.ServiceName(Source), "maestro")
	if err != nil {
		return err
	}
	b.URL = "https://" + p.Listen
	transport := &http.Transport{TLSClientConfig: config, MaxIdleConnsPerHost: 256}
	b.HTTP = &http.Client{Transport: transport}
	conn, err := grpc.NewClient(p.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(config.Clone())),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond,
			Multiplier: 1.6, MaxDelay: time.Second}, MinConnectTimeout: 5 * time.Second}))
	if err != nil {
		return err
	}
	b.OnClose(func() error { transport.CloseIdleConnections(); return conn.Close() })
	b.Events = cloudevents.NewCloudEventServiceClient(conn)
	return nil
}

// freeAddrs returns addresses on loopback that are free now. They are named
// before they are used, so that who is started again is where it was.
func freeAddrs(n int) (addrs []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

func logger(verbose bool) *slog.Logger {
	if verbose {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	return slog.New(slog.DiscardHandler)
}

// background runs f until the bed is closed.
func (b *Bed) background(ctx context.Context, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	b.OnClose(func() error { cancel(); return <-done })
}

// Await polls for what has no event to wait for, for two minutes.
func Await(ctx context.Context, every time.Duration, check func() error) error {
	deadline := time.Now().Add(2 * time.Minute)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// IntN is a random number below n, by the seed.
func (b *Bed) IntN(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.random.IntN(n)
}

func (b *Bed) certificate(name pki.Name) (cert, key []byte, err error) {
	return Certificate(b.ca, name)
}

// Certificate makes a key and a certificate, in PEM.
func Certificate(ca *pki.CA, name pki.Name) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, private)
	if err != nil {
		return nil, nil, err
	}
	if cert, err = ca.Sign(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}), name); err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	return cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

// ClientTLS is what name connects to a service with.
func (b *Bed) ClientTLS(name pki.Name, service string) (*tls.Config, error) {
	cert, key, err := b.certificate(name)
	if err != nil {
		return nil, err
	}
	return ClientTLS(b.ca.CertPEM(), cert, key, service)
}

// Register makes the consumers mc0, mc1, ...
func (b *Bed) Register(n int) error {
	for i := range n {
		resp, err := b.HTTP.Post(b.URL+"/api/maestro/v1/consumers", "application/json", strings.NewReader(
			fmt.Sprintf(`{"name":%q}`, Consumer(i))))
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			return fmt.Errorf("registering %s: %s", Consumer(i), resp.Status)
		}
	}
	return nil
}

// Agent makes the connection of a scripted agent. It does nothing until Run.
func (b *Bed) Agent(consumer string, handle func(bus.Event), connected func(context.Context)) (*bus.Client, error) {
	config, err := b.ClientTLS(pki.Name(consumer), "broker")
	if err != nil {
		return nil, err
	}
	return bus.NewClient(bus.ClientOptions{
		Addr: b.broker, TLS: config, ClientID: consumer + "-agent-client", Window: 8000,
		Subscriptions: []string{bus.Topic{Source: "maestro", Consumer: consumer, Kind: bus.SourceEvents}.String()},
		Handler:       func(_ context.Context, m bus.Message) { handle(m.Event); m.Ack() },
		OnConnected:   connected,
	}), nil
}

// Subscriber is a scripted agent that is connected: handle gets each event.
func (b *Bed) Subscriber(ctx context.Context, consumer string, handle func(c *bus.Client, e bus.Event)) (*bus.Client,
	error) {
	var client *bus.Client
	client, err := b.Agent(consumer, func(e bus.Event) { handle(client, e) }, nil)
	if err != nil {
		return nil, err
	}
	b.background(ctx, client.Run)
	return client, Await(ctx, 2*time.Millisecond, func() error { return client.Check(ctx) })
}

// Many calls f for 0 to n-1 from some goroutines.
func Many(n, goroutines int, f func(i int) error) error {
	var group sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	next := make(chan int)
	for range goroutines {
		group.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	group.Wait()
	if len(errs) > 0 {
		return fmt.Errorf("%d of %d failed, the first: %w", len(errs), n, errs[0])
	}
	return nil
}
