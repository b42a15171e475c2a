// Command clm measures the API of the cluster lifecycle manager: requests per second, their
// latency, and the processor time that each costs the server and PostgreSQL together, from 8
// connections that are kept, with 10,000 clusters stored.
//
// It starts PostgreSQL with its default settings and the server, which is a process of its own, and
// prints JSON lines and, at the end, a table. Each processor time is also given in yardsticks: the
// processor time of PostgreSQL for one transaction of pgbench -N, measured on the same server
// before and after each row. With -url it measures a server that is there already, whatever it is,
// as long as it has the same contract: -server-pid and -postgres-pid then say whose processor time
// counts.
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

	"atoll.dev/bench/report"
)

var (
	url = flag.String("url", "",
		"a server that is there already, such as http://127.0.0.1:8000; its database should be empty")
	serverPid   = flag.Int("server-pid", 0, "with -url: the server's process")
	postgresPid = flag.Int("postgres-pid", 0, "with -url: PostgreSQL's first process, whose children count too")
	adapters    = flag.String("adapters", "validation,dns,pullsecret,hypershift",
		"who reports on clusters; the server requires them")
	clusters    = flag.Int("clusters", 10000, "clusters stored before anything is measured")
	reported    = flag.Bool("reported", true, "all adapters have reported on all of them, as in a region at rest")
	connections = flag.Int("connections", 8, "connections, each with one request at a time")
	duration    = flag.Duration("for", 8*time.Second, "of each measurement")
	rate        = flag.Int("rate", 500, "writes per second while a watch is measured")
	seed        = flag.Uint64("seed", 1, "of the random choices")
	only        = flag.String("only", "", "run the measurements whose names contain one of these, separated by commas")
	creates     = flag.Int("creates", 50, "creates per second while events are measured")
	resources   = flag.Int("resources", 50000, "resources with which the sentinel is weighed")
	pprof       = flag.String("pprof", "", "the server serves profiles on this address")
	hold        = flag.Bool("hold", false, "wait for an interrupt at the end, before the processes are stopped")
	verbose     = flag.Bool("v", false, "show the server's warnings")
)

func main() {
	runPart()
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // then run stops its processes
	err := run(ctx)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	at := &target{url: *url, server: *serverPid, postgres: *postgresPid}
	if *url == "" {
		var stop func() error
		if at, stop, err = start(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	b, err := newBench(at)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := b.fill(ctx); err != nil {
		return fmt.Errorf("storing clusters: %w", err)
	}
	fmt.Fprintf(os.Stderr, "%d clusters stored in %s\n", len(b.ids), time.Since(began).Round(time.Second))
	if err := b.vacuum(ctx); err != nil {
		return err
	}
	if at.dsn != "" && isSelected("size") {
		if err := b.reportSize(ctx); err != nil {
			return err
		}
	}
	table, err := b.measureRows(ctx)
	if err != nil {
		return err
	}
	for i := range table {
		if err := report.Line(os.Stdout, "clm/"+table[i].name, b.params(), table[i].figures()); err != nil {
			return err
		}
	}
	if isSelected("watch") {
		if err := b.reportWatch(ctx); err != nil {
			return err
		}
	}
	if at.dsn != "" && isSelected("event") {
		if err := b.withSentinel(ctx); err != nil {
			return fmt.Errorf("event: %w", err)
		}
	}
	print(table)
	if at.yardstick != nil {
		fmt.Fprintln(os.Stderr, "yardstick:", at.yardstick.times)
	}
	if *hold {
		fmt.Fprintln(os.Stderr, "holding", at.url)
		<-ctx.Done()
	}
	return nil
}

// reportSize prints the size of the stored clusters.
func (b *bench) reportSize(ctx context.Context) error {
	figures, err := b.size(ctx)
	if err != nil {
		return fmt.Errorf("size: %w", err)
	}
	if err := report.Line(os.Stdout, "clm/size", b.params(), figures); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "size", figures)
	return nil
}

// measureRows measures the selected rows, each between two measurements of the yardstick.
func (b *bench) measureRows(ctx context.Context) (table []result, err error) {
	if err := b.target.measureYardstick(ctx); err != nil {
		return nil, err
	}
	for _, row := range b.rows() {
		if !isSelected(row.name) {
			continue
		}
		r, err := b.measure(ctx, row)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", row.name, err)
		}
		// What else the machine does changes within a minute, so each row has a yardstick before and after it.
		if err := b.target.measureYardstick(ctx); err != nil {
			return nil, err
		}
		r.yardstick = b.target.yardstick.unit()
		table = append(table, r)
		fmt.Fprintf(os.Stderr, "%s: %d requests, %.3f ms of processor time each, %.2f yardsticks\n",
			r.name, len(r.took), r.perRequest(r.server+r.postgres), r.yardsticks())
	}
	return table, nil
}

// reportWatch prints the figures of watches.
func (b *bench) reportWatch(ctx context.Context) error {
	figures, err := b.watch(ctx)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	params := b.params()
	params["writes_per_second"] = *rate
	return report.Line(os.Stdout, "clm/watch", params, figures)
}

func isSelected(name string) bool {
	return slices.ContainsFunc(strings.Split(*only, ","), func(part string) bool {
		return strings.Contains(
			name, part)
	})
}

// print writes the measurements as a table.
func print(table []result) {
	if len(table) == 0 {
		return
	}
	fmt.Fprintf(os.Stderr, "%-24s %9s %8s %8s %8s %8s %9s %7s %10s %10s\n",
		"row", "req/s", "p50 ms", "p99 ms", "CPU ms", "server", "postgres", "RSS MB", "yardsticks", "WAL bytes")
	for _, r := range table {
		fmt.Fprintf(os.Stderr, "%-24s %9.0f %8.2f %8.2f %8.3f %8.3f %9.3f %7.1f %10.2f %10d\n", r.name, r.rate(),
			r.percentile(.5), r.percentile(.99),
			r.perRequest(r.server+r.postgres), r.perRequest(r.server), r.perRequest(
				r.postgres), r.resident, r.yardsticks(), r.wal/int64(len(r.took)))
	}
}
