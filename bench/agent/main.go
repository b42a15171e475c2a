// Command agent measures the agent on a real plane and a real broker: the time from a work's
// publication on the bus to its first Applied status, at a fixed rate; works per second with a
// number of them in flight; and how long an agent that was away takes to catch up.
//
// It starts everything itself and prints JSON lines.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	_ "net/http/pprof"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/agent"
	"atoll.dev/bench/report"
	"atoll.dev/bus"
	"atoll.dev/plane"
)

var (
	binary   = flag.String("kube", "bin/atoll-kube", "the atoll-kube to use")
	rate     = flag.Int("rate", 20, "works per second while the latency is measured")
	duration = flag.Duration("duration", 20*time.Second, "of the latency measurement")
	works    = flag.Int("works", 3000, "works of the throughput measurement")
	inFlight = flag.Int("in-flight", 100, "works in flight in the throughput measurement")
	present  = flag.Int("present", 0, "works that exist before anything is measured")
	changes  = flag.Int("changes", 1000, "changes while the agent is away; a fifth of them deletions")
	workers  = flag.Int("workers", 0, "concurrent calls of the agent to the API server; 0 is its default")
	size     = flag.Int("size", 512, "bytes in each ConfigMap")
	seed     = flag.Uint64("seed", 1, "of the random choices")
	faked    = flag.Bool("fake", false, "measure the agent alone, on an API server that answers at once")
	pprof    = flag.String("pprof", "", "serve profiles on this address")
)

const (
	consumer  = "bench"
	crdSettle = 2 * time.Second
)

func main() {
	flag.Parse()
	if *pprof != "" {
		go func() { log.Print(http.ListenAndServe(*pprof, nil)) }()
	}
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "bench-agent-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{dir: dir, rand: rand.New(rand.NewPCG(*seed, 0))}
	defer b.stop()
	if err := b.start(ctx); err != nil {
		return err
	}
	if err := b.fill(ctx); err != nil {
		return err
	}
	measures := []func(context.Context) error{b.latency, b.throughput, b.update, b.away, b.deletions}
	if *faked {
		measures = []func(context.Context) error{b.latency, b.quiet, b.cold, b.deletions, b.flood}
	}
	for _, measure := range measures {
		if err := measure(ctx); err != nil {
			return err
		}
	}
	return nil
}

// bench is one of everything.
type bench struct {
	dir      string
	rand     *rand.Rand
	plane    *plane.Process
	broker   *broker
	options  agent.Options
	server   *server
	registry *prometheus.Registry
	stops    []func() // in reverse
	away1    func()   // stops the agent
	made     int
	fake     *fakeAPI // instead of a plane
	names    []string // works that exist
}

func (b *bench) stop() {
	for i := len(b.stops) - 1; i >= 0; i-- {
		b.stops[i]()
	}
}

func (b *bench) start(ctx context.Context) error {
	cfg, err := b.cluster(ctx)
	if err != nil {
		return err
	}
	if b.broker, err = startBroker(); err != nil {
		return err
	}
	b.stops = append(b.stops, b.broker.stop)
	if b.server, err = startServer(ctx, b.broker); err != nil {
		return err
	}
	tls, err := b.broker.config(consumer)
	if err != nil {
		return err
	}
	b.options = agent.Options{
		Consumer: consumer, Kube: cfg, Bus: bus.ClientOptions{Addr: b.broker.addr,
			TLS: tls}, BrokerHost: "bench", Workers: *workers,
		DataDir: filepath.Join(b.dir, "agent"), Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{
			Level: slog.LevelWarn})),
	}
	return b.startAgent(ctx)
}

// cluster starts the management cluster, and bootstraps it if it is a plane.
func (b *bench) cluster(ctx context.Context) (*rest.Config, error) {
	if *faked {
		var err error
		if b.fake, err = startFake(); err != nil {
			return nil, err
		}
		b.stops = append(b.stops, b.fake.stop)
		return b.fake.config(), nil
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	b.plane, err = plane.Start(context.Background(), plane.Config{Dir: filepath.Join(b.dir, "plane"), Binary: *binary, Address: address},
		plane.Options{})
	if err != nil {
		return nil, err
	}
	b.stops = append(b.stops, func() { _ = b.plane.Kill() })
	if err := b.plane.Wait(ctx); err != nil {
		return nil, err
	}
	admin, err := b.plane.Config.RESTConfig()
	if err != nil {
		return nil, err
	}
	kubeconfig, err := agent.Bootstrap(ctx, admin, agent.BootstrapOptions{})
	if err != nil {
		return nil, err
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	// An API server holds creations of a kind back for two seconds after the kind was made.
	time.Sleep(crdSettle)
	return cfg, nil
}

func (b *bench) startAgent(ctx context.Context) error {
	b.registry = prometheus.NewRegistry()
	o := b.options
	o.Metrics = b.registry
	a, err := agent.New(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := a.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			log.Print(err)
		}
	}()
	b.away1 = func() { cancel(); <-done }
	b.stops = append(b.stops, b.away1)
	return nil
}

func (b *bench) next() string {
	b.made++
	id := fmt.Sprintf("work-%06d", b.made)
	b.names = append(b.names, id)
	return id
}

func (b *bench) params(more map[string]any) map[string]any {
	p := map[string]any{"seed": *seed, "size_bytes": *size, "workers": *workers, "present": b.made}
	for k, v := range more {
		p[k] = v
	}
	return p
}

func (b *bench) fill(ctx context.Context) error {
	_, err := b.burst(ctx, *present)
	return err
}

// latency publishes at a fixed rate, whatever becomes of the works.
func (b *bench) latency(ctx context.Context) error {
	params := b.params(map[string]any{"rate": *rate, "duration": duration.String()})
	n := int(duration.Seconds() * float64(*rate))
	ids := make([]string, 0, n)
	tick := time.NewTicker(time.Second / time.Duration(*rate))
	defer tick.Stop()
	usage := b.usage()
	for range n {
		<-tick.C
		id := b.next()
		ids = append(ids, id)
		b.server.apply(ctx, id, b.bundle(id))
	}
	took, err := b.server.await(ctx, ids)
	if err != nil {
		return err
	}
	figures := map[string]any{}
	report.Percentiles(figures, "publish_to_applied", took)
	b.cpu(figures, usage, n)
	return report.Line(os.Stdout, "agent/latency", params, figures)
}

// throughput keeps a number of works in flight.
func (b *bench) throughput(ctx context.Context) error {
	params := b.params(map[string]any{"works": *works, "in_flight": *inFlight})
	usage, begun := b.usage(), time.Now()
	took, err := b.burst(ctx, *works)
	if err != nil {
		return err
	}
	figures := map[string]any{"works_per_second": int(float64(*works) / time.Since(begun).Seconds())}
	report.Percentiles(figures, "publish_to_applied", took)
	b.cpu(figures, usage, *works)
	return report.Line(os.Stdout, "agent/throughput", params, figures)
}

func (b *bench) burst(ctx context.Context, n int) ([]time.Duration, error) {
	places := make(chan struct{}, *inFlight)
	ids := make([]string, 0, n)
	for range n {
		id := b.next()
		ids = append(ids, id)
		select {
		case places <- struct{}{}:
		case <-time.After(time.Minute):
			return nil, errors.New("works are lost")
		}
		b.server.then(id, func() { <-places })
		b.server.apply(ctx, id, b.bundle(id))
	}
	return b.server.await(ctx, ids)
}

// update makes new generations of works that exist, at the rate of latency.
func (b *bench) update(ctx context.Context) error {
	n := min(b.made, 200)
	params := b.params(map[string]any{"rate": *rate, "updates": n})
	ids := make([]string, 0, n)
	tick := time.NewTicker(time.Second / time.Duration(*rate))
	defer tick.Stop()
	for _, i := range b.rand.Perm(b.made)[:n] {
		<-tick.C
		id := fmt.Sprintf("work-%06d", i+1)
		ids = append(ids, id)
		b.server.apply(ctx, id, b.bundle(id))
	}
	took, err := b.server.await(ctx, ids)
	if err != nil {
		return err
	}
	figures := map[string]any{}
	report.Percentiles(figures, "publish_to_applied", took)
	return report.Line(os.Stdout, "agent/update", params, figures)
}

// away changes works while the agent is not there, and times its return.
func (b *bench) away(ctx context.Context) error {
	deletions := min(*changes/5, b.made)
	updates := min(*changes/5, b.made-deletions)
	params := b.params(map[string]any{"changes": *changes, "deletions": deletions, "updates": updates})
	b.away1()
	order := b.rand.Perm(b.made)
	var ids []string
	for i, x := range order[:deletions+updates] {
		id := fmt.Sprintf("work-%06d", x+1)
		ids = append(ids, id)
		if i < deletions {
			b.server.delete(ctx, id)
		} else {
			b.server.apply(ctx, id, b.bundle(id))
		}
	}
	for len(ids) < *changes {
		id := b.next()
		ids = append(ids, id)
		b.server.apply(ctx, id, b.bundle(id))
	}
	begun := time.Now()
	if err := b.startAgent(ctx); err != nil {
		return err
	}
	usage := b.usage() // a new agent counts anew
	figures := map[string]any{}
	if _, err := b.server.await(ctx, ids[deletions:]); err != nil {
		return err
	}
	figures["applied_ms"] = time.Since(begun).Milliseconds()
	if _, err := b.server.await(ctx, ids[:deletions]); err != nil {
		return err
	}
	figures["converged_ms"] = time.Since(begun).Milliseconds()
	b.cpu(figures, usage, *changes)
	return report.Line(os.Stdout, "agent/away", params, figures)
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
