// Package bed runs a region's Maestro for a benchmark: PostgreSQL with its default durability, a broker, servers and a
// CA. It makes the events of sources and agents, and their connections over mutual TLS as in production.
//
// The programs below bench use it, nothing else does. Servers and broker run in the benchmark's process, or as
// processes of their own that can be measured and killed: this program, started again (see RunPart), or Mosquitto.
package bed

import (
	"context"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"atoll.dev/api/cloudevents"
	"atoll.dev/internal/freeport"
	"atoll.dev/internal/mosquitto"
	"atoll.dev/internal/postgres"
	"atoll.dev/pki"
)

// Source is the source of all works.
const Source = "bench"

// Values of Options.Broker.
const (
	Embedded  = "embedded"
	Mosquitto = "mosquitto"
)

// Options are parameters of New.
type Options struct {
	Broker  string // Embedded (default) or Mosquitto
	Seed    uint64 // of the content of works
	Apart   bool   // servers and broker are processes of their own
	Verbose bool   // servers and broker print their warnings
	Pprof   string // address at which the first server serves profiles, if it is apart; "": none

	Servers       int           // number of servers with one database and broker; default 1. Sources call the first
	BrokerLatency time.Duration // in each direction between servers and broker
	PublishRate   float64       // limit of a server's events in a second, as some brokers have; 0: no limit
}

// Bed is the region. Server is nil unless servers are apart. Broker is nil unless it is apart or Mosquitto.
type Bed struct {
	URL    string // of the REST API
	HTTP   *http.Client
	Events cloudevents.CloudEventServiceClient
	DSN    string // of the server's database

	Server, Broker, Database Process

	o       Options
	ca      *pki.CA
	broker  string // host:port
	link    string // address at which servers reach the broker
	closers []func() error
	mu      sync.Mutex
	random  *mathrand.Rand
}

// New starts a region. Close ends it and removes its files.
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
	b.link = b.broker
	if o.BrokerLatency > 0 {
		k, err := newLink(b.broker, o.BrokerLatency)
		if err != nil {
			return b, err
		}
		b.OnClose(k.Close)
		b.link = k.addr()
	}
	if err := b.startServer(ctx); err != nil {
		return b, err
	}
	for range o.Servers - 1 {
		if _, err := b.StartReplica(ctx); err != nil {
			return b, err
		}
	}
	return b, nil
}

// Servers returns the number of servers that New started.
func (b *Bed) Servers() int { return max(b.o.Servers, 1) }

// OnClose makes Close call f, before it ends the parts that were started earlier.
func (b *Bed) OnClose(f func() error) { b.closers = append(b.closers, f) }

// Close ends all parts, the latest first.
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
	d := &database{cluster: c}
	if err := d.Start(); err != nil {
		return err
	}
	b.Database = d
	b.OnClose(d.stop)
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

// serverPart returns the parameters of a new server.
func (b *Bed) serverPart() (part, error) {
	cert, key, err := b.certificate(pki.ServiceName("maestro"))
	if err != nil {
		return part{}, err
	}
	addrs, err := freeAddrs(2)
	if err != nil {
		return part{}, err
	}
	return part{
		Role: roleServer, DSN: b.DSN, Broker: b.link, PublishRate: b.o.PublishRate, Listen: addrs[0], GRPC: addrs[1],
		CA: b.ca.CertPEM(), Cert: cert, Key: key,
	}, nil
}

// StartReplica starts a further server, which no source calls. The process is nil unless servers are apart.
func (b *Bed) StartReplica(ctx context.Context) (Process, error) {
	p, err := b.serverPart()
	if err != nil {
		return nil, err
	}
	return b.start(ctx, p)
}

// startServer starts the server that sources call, and makes the sources' clients.
func (b *Bed) startServer(ctx context.Context) error {
	p, err := b.serverPart()
	if err != nil {
		return err
	}
	p.Pprof = b.o.Pprof
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

// freeAddrs returns n different free addresses. A part that is started again has the same address.
func freeAddrs(n int) (addrs []string, err error) {
	for range n {
		l, err := freeport.Listen()
		if err != nil {
			return nil, err
		}
		defer l.Close() // so that the next port is another one
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

// logger returns the logger of a part.
func (p part) logger() *slog.Logger {
	if p.Verbose {
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

// Await calls check until it returns nil, for two minutes at most. Then it returns the last error.
func Await(ctx context.Context, every time.Duration, check func() error) error {
	return AwaitFor(ctx, 2*time.Minute, every, check)
}

// AwaitFor is Await with another limit. The pause between two calls is at least five times as long as a call, so that
// expensive checks slow the measured processes little.
func AwaitFor(ctx context.Context, limit, every time.Duration, check func() error) error {
	deadline := time.Now().Add(limit)
	for {
		begun := time.Now()
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		timer := time.NewTimer(max(every, 5*time.Since(begun)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// IntN returns a random number below n. The numbers depend on the seed.
func (b *Bed) IntN(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.random.IntN(n)
}
