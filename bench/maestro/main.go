// Command maestro measures Maestro: reading lists, delivering works, taking statuses, concurrent updates, and the way
// of a work to its agent and back.
//
// It starts PostgreSQL with default durability, the embedded broker and one server, all on this machine, speaks to them
// over mutual TLS as clients do, and prints JSON lines. Agents are scripted: they answer at once and apply nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	_ "net/http/pprof"
	"os"
	"strings"

	"atoll.dev/bench/report"
)

var (
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
	seed        = flag.Uint64("seed", 1, "of the manifests' content")
	only        = flag.String("only", "", "run the measurements whose names contain this")
	pprof       = flag.String("pprof", "", "serve profiles on this address")
	verbose     = flag.Bool("v", false, "show the server's warnings")
)

func main() {
	flag.Parse()
	if *pprof != "" {
		go http.ListenAndServe(*pprof, nil)
	}
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	for _, m := range []struct {
		name string
		run  func(ctx context.Context, b *bed) (params, figures map[string]any, err error)
	}{
		{"maestro/list", list},
		{"maestro/search", searchLabels},
		{"maestro/delivery", deliver},
		{"maestro/status", ingest},
		{"maestro/update", update},
		{"maestro/latency", latency},
	} {
		if !strings.Contains(m.name, *only) {
			continue
		}
		// Each on a fresh region, so that their order does not matter.
		b, err := newBed(ctx)
		if err != nil {
			return err
		}
		params, figures, err := m.run(ctx, b)
		if err := errors.Join(err, b.close()); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		params["seed"] = *seed
		if err := report.Line(os.Stdout, m.name, params, figures); err != nil {
			return err
		}
	}
	return nil
}
