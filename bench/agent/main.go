// Command agent measures the agent on a real plane and a real broker: the time from a work's
// publication on the bus to its first Applied status, at a fixed rate; works per second with a
// number of them in flight; and how long a restarted agent needs to catch up.
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
	"atoll.dev/internal/freeport"
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
	measures := []func(context.Context) error{
		b.measureLatency,
		b.measureThroughput,
		b.measureUpdates,
		b.measureChangesWhileStopped,
		b.measureDeletions,
	}
	if *faked {
		measures = []func(context.Context) error{
			b.measureLatency,
			b.measureIdle,
			b.measureLostDisk,
			b.measureDeletions,
			b.measureDeletionsAfterCreations,
		}
	}
	for _, measure := range measures {
		if err := measure(ctx); err != nil {
			return err
		}
	}
	return nil
}

// bench has the management cluster, the broker, the server and the agent of a measurement.
type bench struct {
	dir       string
	rand      *rand.Rand
	plane     *plane.Process
	broker    *broker
	options   agent.Options
	server    *server
	registry  *prometheus.Registry
	stops     []func() // stop calls these, the last one first
	stopAgent func()   // stops the agent
	created   int
	fake      *fakeAPI // instead of a plane
	existing  []string // works that exist
}

func (b *bench) stop() {
	for i := len(b.stops) - 1; i >= 0; i-- {
		b.stops[i]()
	}
}

func (b *bench) start(ctx context.Context) error {
	cfg, err := b.startCluster(ctx)
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
	tls, err := b.broker.tlsConfig(consumer)
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

// startCluster starts the management cluster, and bootstraps it if it is a plane.
func (b *bench) startCluster(ctx context.Context) (*rest.Config, error) {
	if *faked {
		var err error
		if b.fake, err = startFake(); err != nil {
			return nil, err
		}
		b.stops = append(b.stops, b.fake.stop)
		return b.fake.config(), nil
	}
	address, err := freeport.Address()
	if err != nil {
		return nil, err
	}
	b.plane, err = plane.Start(
		context.Background(),
		plane.Config{Dir: filepath.Join(b.dir, "plane"), Binary: *binary, Address: address},
		plane.Options{},
	)
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
	// An API server delays creations of a new kind for two seconds.
	time.Sleep(crdSettle)
	return cfg, nil
}

// startAgent starts an agent; stopAgent stops it.
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
	b.stopAgent = func() { cancel(); <-done }
	b.stops = append(b.stops, b.stopAgent)
	return nil
}

// newID returns the id of a new work.
func (b *bench) newID() string {
	b.created++
	id := fmt.Sprintf("work-%06d", b.created)
	b.existing = append(b.existing, id)
	return id
}

func (b *bench) params(more map[string]any) map[string]any {
	p := map[string]any{"seed": *seed, "size_bytes": *size, "workers": *workers, "present": b.created}
	for k, v := range more {
		p[k] = v
	}
	return p
}

func (b *bench) fill(ctx context.Context) error {
	_, err := b.applyMany(ctx, *present)
	return err
}

// measureLatency publishes works at a fixed rate, and measures the time from publication to the Applied status.
func (b *bench) measureLatency(ctx context.Context) error {
	params := b.params(map[string]any{"rate": *rate, "duration": duration.String()})
	n := int(duration.Seconds() * float64(*rate))
	ids := make([]string, 0, n)
	tick := time.NewTicker(time.Second / time.Duration(*rate))
	defer tick.Stop()
	usage := b.readProcessorTime()
	for range n {
		<-tick.C
		id := b.newID()
		ids = append(ids, id)
		b.server.apply(ctx, id, b.newBundle(id))
	}
	took, err := b.server.await(ctx, ids)
	if err != nil {
		return err
	}
	figures := map[string]any{}
	report.Percentiles(figures, "publish_to_applied", took)
	b.addCPU(figures, usage, n)
	return report.Line(os.Stdout, "agent/latency", params, figures)
}

// measureThroughput measures works per second with a fixed number of works in flight.
func (b *bench) measureThroughput(ctx context.Context) error {
	params := b.params(map[string]any{"works": *works, "in_flight": *inFlight})
	usage, begun := b.readProcessorTime(), time.Now()
	took, err := b.applyMany(ctx, *works)
	if err != nil {
		return err
	}
	figures := map[string]any{"works_per_second": int(float64(*works) / time.Since(begun).Seconds())}
	report.Percentiles(figures, "publish_to_applied", took)
	b.addCPU(figures, usage, *works)
	return report.Line(os.Stdout, "agent/throughput", params, figures)
}

// applyMany publishes n works, with -in-flight of them unapplied, and returns their times.
func (b *bench) applyMany(ctx context.Context, n int) ([]time.Duration, error) {
	places := make(chan struct{}, *inFlight)
	ids := make([]string, 0, n)
	for range n {
		id := b.newID()
		ids = append(ids, id)
		select {
		case places <- struct{}{}:
		case <-time.After(time.Minute):
			return nil, errors.New("works are lost")
		}
		b.server.callWhenDone(id, func() { <-places })
		b.server.apply(ctx, id, b.newBundle(id))
	}
	return b.server.await(ctx, ids)
}

// measureUpdates publishes new generations of existing works, at the rate of measureLatency.
func (b *bench) measureUpdates(ctx context.Context) error {
	n := min(b.created, 200)
	params := b.params(map[string]any{"rate": *rate, "updates": n})
	ids := make([]string, 0, n)
	tick := time.NewTicker(time.Second / time.Duration(*rate))
	defer tick.Stop()
	for _, i := range b.rand.Perm(b.created)[:n] {
		<-tick.C
		id := fmt.Sprintf("work-%06d", i+1)
		ids = append(ids, id)
		b.server.apply(ctx, id, b.newBundle(id))
	}
	took, err := b.server.await(ctx, ids)
	if err != nil {
		return err
	}
	figures := map[string]any{}
	report.Percentiles(figures, "publish_to_applied", took)
	return report.Line(os.Stdout, "agent/update", params, figures)
}

// measureChangesWhileStopped changes works while the agent is stopped, and measures the time from the agent's start
// until it has applied all changes.
func (b *bench) measureChangesWhileStopped(ctx context.Context) error {
	deletions := min(*changes/5, b.created)
	updates := min(*changes/5, b.created-deletions)
	params := b.params(map[string]any{"changes": *changes, "deletions": deletions, "updates": updates})
	b.stopAgent()
	order := b.rand.Perm(b.created)
	var ids []string
	for i, x := range order[:deletions+updates] {
		id := fmt.Sprintf("work-%06d", x+1)
		ids = append(ids, id)
		if i < deletions {
			b.server.delete(ctx, id)
		} else {
			b.server.apply(ctx, id, b.newBundle(id))
		}
	}
	for len(ids) < *changes {
		id := b.newID()
		ids = append(ids, id)
		b.server.apply(ctx, id, b.newBundle(id))
	}
	begun := time.Now()
	if err := b.startAgent(ctx); err != nil {
		return err
	}
	usage := b.readProcessorTime() // a new agent starts its counters at 0
	figures := map[string]any{}
	if _, err := b.server.await(ctx, ids[deletions:]); err != nil {
		return err
	}
	figures["applied_ms"] = time.Since(begun).Milliseconds()
	if _, err := b.server.await(ctx, ids[:deletions]); err != nil {
		return err
	}
	figures["converged_ms"] = time.Since(begun).Milliseconds()
	b.addCPU(figures, usage, *changes)
	return report.Line(os.Stdout, "agent/away", params, figures)
}
