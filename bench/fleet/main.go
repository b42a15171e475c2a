// Command fleet measures Maestro with many management clusters: memory and processor time at rest, the time until all
// agree after the broker, the server or PostgreSQL was killed, and two servers that share delivery.
//
// PostgreSQL, the broker and the servers are processes of their own. The management clusters are simulated agents in
// this process, each with a connection and a certificate of its own. They store generations and hashes instead of
// applying works. They compare with the server by digests, as Atoll's agent, or by lists, as that of Open Cluster
// Management.
//
// Their works are copies, in the database, of one work that was made by the API, delivered and acknowledged; or, with
// -prepare api, all are made by the API. While a process is away, statuses change and works are changed. All agree when
// each agent holds each of its works at the last generation, the ledger has this generation acknowledged with the
// agent's present status, and, by digests, the server has answered each agent that nothing differs. The command fails
// and names the agents when one does not agree.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"atoll.dev/bench/bed"
	"atoll.dev/bench/report"
)

var (
	broker   = flag.String("broker", bed.Embedded, "embedded or mosquitto")
	clusters = flag.Int("clusters", 1000, "management clusters")
	works    = flag.Int("works", 100, "works of each")
	size     = flag.Int("size", 512, "bytes of a work's manifest")
	prepare  = flag.String("prepare", "copy",
		"how the works are made: copy (rows in the database), or api (each by a call, for small fleets)")
	digests = flag.String("digests", "true",
		"how agents compare: true (by digests), false (by lists), or both, one after the other")
	phases = flag.String("phases", "rest,broker,server,postgres,shared",
		"what is measured: rest; the kill of broker, server or postgres; shared: two servers")
	changed = flag.Int("changed", 5,
		"works of each cluster whose status changes while a killed process is away")
	outage      = flag.Duration("outage", 5*time.Second, "how long a killed process is away")
	atRest      = flag.Duration("rest", 60*time.Second, "how long memory and processor time are measured at rest")
	settlePause = flag.Duration(
		"settle",
		30*time.Second,
		"pause between the first connections and the measurement at rest",
	)
	limit       = flag.Duration("limit", 10*time.Minute, "longest wait until all agree; then the command fails")
	concurrency = flag.Int("concurrency", 32, "concurrent publishers")
	publishRate = flag.Float64("publish-rate", 0, "events that a server may publish in a second; 0: no limit")
	seed        = flag.Uint64("seed", 1, "of the works' content")
	pprof       = flag.String("pprof", "", "address at which the server serves profiles")
	verbose     = flag.Bool("v", false, "show warnings of servers and broker")
)

func main() {
	bed.RunPart()
	flag.Parse()
	if *broker != bed.Embedded && *broker != bed.Mosquitto {
		log.Fatalf("-broker %q is neither embedded nor mosquitto", *broker)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // run stops its processes
	err := run(ctx)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	comparisons, ok := map[string][]comparison{"both": {byDigests, byLists}, "true": {byDigests},
		"false": {byLists}}[*digests]
	if !ok {
		return fmt.Errorf("-digests %q is neither true, false nor both", *digests)
	}
	prepareWorks, ok := map[string]func(*fleet, context.Context) error{"copy": (*fleet).prepareByCopy, "api": (*fleet).prepareByAPI}[*prepare]
	if !ok {
		return fmt.Errorf("-prepare %q is neither copy nor api", *prepare)
	}
	measure := strings.Split(*phases, ",")
	b, err := bed.New(ctx, bed.Options{Broker: *broker, Seed: *seed, Apart: true, Verbose: *verbose, Pprof: *pprof,
		PublishRate: *publishRate})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	f := newFleet(b, *clusters, *works, *size)
	f.digests.Store(comparisons[0] == byDigests)
	if err := prepareWorks(f, ctx); err != nil {
		return fmt.Errorf("preparing the works: %w", err)
	}
	if slices.Contains(measure, "rest") {
		if err := f.measureIdle(ctx); err != nil {
			return err
		}
	}
	for _, by := range comparisons {
		if err := f.compareBy(ctx, by); err != nil {
			return err
		}
		for _, part := range []struct {
			name string
			p    bed.Process
		}{{"broker", b.Broker}, {"server", b.Server}, {"postgres", b.Database}} {
			if !slices.Contains(measure, part.name) {
				continue
			}
			if err := f.kill(ctx, part.name, part.p); err != nil {
				return fmt.Errorf("%s killed, comparison by %s: %w", part.name, by, err)
			}
		}
	}
	if slices.Contains(measure, "shared") {
		return f.measureShared(ctx)
	}
	return nil
}

func (f *fleet) params() map[string]any {
	return map[string]any{"broker": *broker, "clusters": f.clusters, "works_of_each": f.worksOfEach,
		"manifest_bytes": f.size, "seed": *seed, "prepared_by": *prepare, "publish_rate": *publishRate,
		"digests": f.digests.Load()}
}

func (f *fleet) report(name string, figures map[string]any) error {
	return report.Line(os.Stdout, "fleet/"+name, f.params(), figures)
}
