// Command lifecycle measures how long a cluster takes from POST to Reconciled=True, and from DELETE
// to 404, through CLM, its sentinel, the bus and two adapters with objects in memory:
// the time of all parts but a management cluster. It also measures the time from a POST to its event at an adapter.
//
// All of it but PostgreSQL, which has its default durability, is in one process, with the load generator. Creates and
// deletes come at a steady pace, whether the earlier ones are done or not.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"atoll.dev/adapter/transporttest"
	"atoll.dev/bench/load"
	"atoll.dev/bench/report"
	"atoll.dev/internal/postgres"
)

var (
	rate     = flag.Float64("rate", 50, "creates, and then deletes, per second")
	duration = flag.Duration("for", 20*time.Second, "of the creates")
	stored   = flag.Int("stored", 0, "clusters that are there and reconciled before anything is measured")
	verbose  = flag.Bool("v", false, "show warnings")

	idleClusters = flag.Int("idle", 0, "measure a region at rest instead: so many clusters with two node pools each")
	dataDir      = flag.String("data", "", "with -idle: keep the database in this directory, and use the one that "+
		"is there")
	startProfile = flag.String("start-profile", "", "with -idle: write a profile of the start to this file")
	crashes      = flag.Bool("crashes", false, "with -idle: kill the lifecycle manager and PostgreSQL in turn")
	pprofAddress = flag.String("pprof", "", "with -idle: the lifecycle manager serves profiles on this address")
)

const entities = `
entities:
- {kind: Cluster, plural: clusters, name_min_len: 3, name_max_len: 54, required_adapters: [one, two]}
- {kind: NodePool, plural: nodepools, parent_kind: Cluster, on_parent_delete: cascade}
`

// config and task are those of each adapter; %[1]s is its name.
const (
	config = `
adapter: {name: %[1]s}
clients:
  broker: {subscription_id: %[1]s, topic: clusters}
  hyperfleet_api: {base_delay: 50ms}
`
	task = `
params:
- {name: clusterId, source: event.id, required: true}
- name: cluster
  required: true
  source: {api_call: {method: GET, url: "/clusters/{{ .clusterId }}"}}
- {name: generation, source: cluster.generation, type: int, required: true}
- {name: is_deleting, source: {expression: has(cluster.deleted_time)}}
resources:
- name: settings
  transport: {client: kubernetes}
  manifest:
    apiVersion: v1
    kind: ConfigMap
    metadata:
      name: c-{{ .clusterId }}
      namespace: %[1]s
      annotations: {hyperfleet.io/generation: "{{ .generation }}"}
    data: {cluster: "{{ .clusterId }}"}
  discovery: {namespace: %[1]s, by_name: "c-{{ .clusterId }}"}
  lifecycle:
    delete: {when: {expression: is_deleting}}
post:
  payloads:
  - name: statusPayload
    build:
      adapter: %[1]s
      conditions:
      - {type: Applied, status: {expression: 'resources.?settings.hasValue() ? "True" : "False"'}, reason: Applied, message: ""}
      - {type: Available, status: {expression: 'resources.?settings.hasValue() ? "True" : "False"'}, reason: Applied, message: ""}
      - {type: Health, status: {expression: 'adapter.executionStatus == "success" ? "True" : "False"'}, reason: Healthy, message: ""}
      - {type: Finalized, status: {expression: 'is_deleting && adapter.executionStatus == "success" && !resources.?settings.hasValue() ? "True" : "False"'}, reason: Deletion, message: ""}
      observed_generation: {expression: generation}
      observed_time: '{{ now | date "2006-01-02T15:04:05.000000Z07:00" }}'
  post_actions:
  - name: updateStatus
    api_call:
      method: PUT
      url: /clusters/{{ .clusterId }}/statuses
      headers: [{name: Content-Type, value: application/json}]
      body: "{{ .statusPayload }}"
`
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // then run stops its processes
	var err error
	if dsn := os.Getenv(serverVariable); dsn != "" {
		err = runServer(ctx, dsn)
	} else {
		err = run(ctx)
	}
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

// database is the running PostgreSQL server, another one after a crash.
type database struct{ *postgres.Process }

func run(ctx context.Context) (err error) {
	dir := *dataDir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "atoll-bench-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // PostgreSQL's user may be another
		return err
	}
	cluster := &postgres.Cluster{DataDir: filepath.Join(dir, "data"), SocketDir: filepath.Join(dir, "s")}
	if err := cluster.Init(ctx); err != nil {
		return err
	}
	server, err := cluster.Start(ctx, io.Discard)
	if err != nil {
		return err
	}
	running := &database{server}
	defer func() { err = errors.Join(err, running.Stop()) }()
	if err := cluster.EnsureDatabase(ctx, "clm", "clm"); err != nil {
		return err
	}
	if *idleClusters > 0 {
		return idle(ctx, cluster, running)
	}
	o := regionOptions{DSN: cluster.DSN("clm", "clm"), Entities: entities}
	if *verbose {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	region, err := startRegion(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, region.Close()) }()
	b := &bench{region: region, postedAt: map[string]time.Time{}, eventAt: map[string]time.Time{},
		reconciledAt: map[string]time.Time{}, deleteSentAt: map[string]time.Time{}, removedAt: map[string]time.Time{}}
	return b.run(ctx)
}

// bench records the times of a cluster's steps.
type bench struct {
	region *region

	mu                                                       sync.Mutex
	postedAt, eventAt, reconciledAt, deleteSentAt, removedAt map[string]time.Time // by id
}

func (b *bench) run(ctx context.Context) error {
	for _, name := range []string{"one", "two"} {
		err := b.region.Run(ctx, adapterFiles{
			Config: fmt.Appendf(nil, config, name), Task: fmt.Appendf(nil, task,
				name), Transport: transporttest.NewMemory(),
		})
		if err != nil {
			return err
		}
	}
	if err := b.follow(ctx); err != nil {
		return err
	}
	if err := b.storeClusters(ctx); err != nil {
		return err
	}
	n := int(*rate * duration.Seconds())
	ids := make([]string, n)
	if _, err := load.AtRate(ctx, n, *rate, func(i int) (err error) {
		ids[i], err = b.create(ctx, fmt.Sprintf("c-%d", i))
		return err
	}); err != nil {
		return err
	}
	if err := b.awaitAll(ctx, ids, b.reconciledAt); err != nil {
		return fmt.Errorf("waiting until all clusters are reconciled: %w", err)
	}
	if _, err := load.AtRate(ctx, n, *rate, func(i int) error {
		b.recordTime(b.deleteSentAt, ids[i])
		return b.region.Call(ctx, "DELETE", "/clusters/"+ids[i], nil, nil)
	}); err != nil {
		return err
	}
	if err := b.awaitAll(ctx, ids, b.removedAt); err != nil {
		return fmt.Errorf("waiting until all clusters are removed: %w", err)
	}
	figures := map[string]any{"clusters": n}
	report.Percentiles(figures, "post_to_event", b.durations(ids, b.postedAt, b.eventAt))
	report.Percentiles(figures, "post_to_reconciled", b.durations(ids, b.postedAt, b.reconciledAt))
	report.Percentiles(figures, "delete_to_gone", b.durations(ids, b.deleteSentAt, b.removedAt))
	return report.Line(os.Stdout, "lifecycle", map[string]any{"per_second": *rate, "seconds": duration.Seconds(),
		"stored": *stored, "adapters": 2}, figures)
}

func (b *bench) create(ctx context.Context, name string) (string, error) {
	begun := time.Now()
	var r resource
	err := b.region.Call(ctx, "POST", "/clusters", map[string]any{"kind": "Cluster", "name": name,
		"spec": map[string]any{"size": 3}}, &r)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.postedAt[r.ID] = begun
	return r.ID, err
}

// storeClusters stores -stored clusters before the measurement, and waits until they are reconciled.
func (b *bench) storeClusters(ctx context.Context) error {
	ids := make([]string, *stored)
	next := make(chan int)
	var all sync.WaitGroup
	var failed error
	for range 16 {
		all.Go(func() {
			for i := range next {
				id, err := b.create(ctx, fmt.Sprintf("old-%d", i))
				b.mu.Lock()
				ids[i], failed = id, errors.Join(failed, err)
				b.mu.Unlock()
			}
		})
	}
	for i := range *stored {
		next <- i
	}
	close(next)
	all.Wait()
	if failed != nil {
		return failed
	}
	if err := b.awaitAll(ctx, ids, b.reconciledAt); err != nil {
		return err
	}
	return b.awaitIdleAdapters(ctx)
}

// awaitIdleAdapters waits until the adapters process no events any more, also no repeated ones.
func (b *bench) awaitIdleAdapters(ctx context.Context) error {
	runs := func() (n float64, err error) {
		families, err := b.region.Ops.Registry.Gather()
		for _, f := range families {
			if f.GetName() == "hyperfleet_adapter_events_processed_total" {
				for _, m := range f.GetMetric() {
					n += m.GetCounter().GetValue()
				}
			}
		}
		return n, err
	}
	for last := -1.0; ; {
		now, err := runs()
		if err != nil || now == last {
			return err
		}
		last = now
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(3 * time.Second):
		}
	}
}

// awaitAll waits until each cluster has a time. It returns an error after a minute without progress.
func (b *bench) awaitAll(ctx context.Context, ids []string, in map[string]time.Time) error {
	missing := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		n := 0
		for _, id := range ids {
			if in[id].IsZero() {
				n++
			}
		}
		return n
	}
	for last, at := missing(), time.Now(); last > 0; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		switch now := missing(); {
		case now != last:
			last, at = now, time.Now()
		case time.Since(at) > time.Minute:
			return fmt.Errorf("%d of %d are still missing after a minute without progress", now, len(ids))
		}
	}
	return nil
}
