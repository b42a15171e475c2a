// Command maestro measures Maestro: reading lists, delivering works, taking statuses, concurrent updates, the way of a
// work to its agent and back, deletion, and whether anything gets lost in a minute at a steady pace.
//
// It starts PostgreSQL with default durability, a broker (the embedded one, or Mosquitto) and one
// server, all on this machine, speaks to them over mutual TLS as clients do, and prints JSON lines.
// Agents are scripted: they answer at once and apply nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
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
	broker      = flag.String("broker", bed.Embedded, "embedded or mosquitto")
	bundles     = flag.Int("bundles", 6000, "bundles of the list")
	listSize    = flag.Int("list-size", 8192, "bytes of a manifest in the list")
	page        = flag.Int("page", 400, "bundles of a page")
	searchable  = flag.Int("searchable", 100000, "bundles of which some are searched by a label")
	works       = flag.Int("works", 5000, "works of the other measurements")
	size        = flag.Int("size", 512, "bytes of their manifest")
	consumers   = flag.Int("consumers", 8, "management clusters")
	concurrency = flag.Int("concurrency", 16, "concurrent publishers")
	updaters    = flag.Int("updaters", 200, "concurrent updaters")
	reports     = flag.Int("reports", 10000, "statuses that agents send in a second")
	rate        = flag.Int("rate", 20, "works per second while the latency is measured")
	count       = flag.Int("count", 400, "works whose latency is measured")
	duration    = flag.Duration("for", time.Minute, "how long works come at a steady pace")
	steady      = flag.Int("steady", 1000, "works of that pace in a second")
	seed        = flag.Uint64("seed", 1, "of the manifests' content")
	only        = flag.String("only", "",
		"run these measurements: list, search, delivery, status, update, latency, deletion, sustained, one-server, "+
			"two-servers; default all")
	pprof       = flag.String("pprof", "", "serve profiles on this address")
	publishRate = flag.Float64("publish-rate", 100,
		"events that each of one or two servers may publish in a second, as brokers with quotas demand")
	brokerLatency = flag.Duration("broker-latency", 5*time.Millisecond,
		"of the way from one or two servers to the broker, in each direction")
	verbose = flag.Bool("v", false, "show the server's warnings")
)

func main() {
	flag.Parse()
	if *broker != bed.Embedded && *broker != bed.Mosquitto {
		log.Fatalf("-broker %q is neither embedded nor mosquitto", *broker)
	}
	if *pprof != "" {
		go http.ListenAndServe(*pprof, nil)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // run stops its processes
	err := run(ctx)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	for _, m := range []struct {
		name string
		run  func(ctx context.Context, b *bed.Bed) (params, figures map[string]any, err error)
	}{
		{"maestro/list", list},
		{"maestro/search", searchLabels},
		{"maestro/delivery", deliver},
		{"maestro/status", ingest},
		{"maestro/update", update},
		{"maestro/latency", latency},
		{"maestro/deletion", deletion},
		{"maestro/sustained", sustained},
		{"maestro/one-server", deliverAtRate},
		{"maestro/two-servers", deliverAtRate},
	} {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), strings.TrimPrefix(m.name, "maestro/")) {
			continue
		}
		// Each measurement has a new region, so their order does not matter.
		o := bed.Options{Broker: *broker, Seed: *seed, Verbose: *verbose}
		switch m.name {
		case "maestro/one-server":
			o.Servers, o.BrokerLatency, o.PublishRate = 1, *brokerLatency, *publishRate
		case "maestro/two-servers":
			o.Servers, o.BrokerLatency, o.PublishRate = 2, *brokerLatency, *publishRate
		}
		b, err := bed.New(ctx, o)
		if err != nil {
			return err
		}
		params, figures, err := m.run(ctx, b)
		if err := errors.Join(err, b.Close()); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		params["seed"], params["broker"] = *seed, *broker
		if err := report.Line(os.Stdout, m.name, params, figures); err != nil {
			return err
		}
	}
	return nil
}
