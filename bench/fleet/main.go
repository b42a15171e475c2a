// Command fleet measures one Maestro server with many management clusters: its memory, and the time until all agree
// again when the broker, or the server, was killed and is back.
//
// PostgreSQL, the broker and the server are processes of their own; the clusters are light agents
// in this one, each with its own connection and certificate, which remember instead of applying.
// They compare with the server by digests, as Atoll's agent, or by lists, as that of Open Cluster
// Management. While the broker or the server is away statuses change and works are changed, so that
// there is something to agree about. All agree when each agent has each work at its last
// generation, and the server's ledger has it acknowledged with the status that the agent has now.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/api/work"
	"atoll.dev/bench/bed"
	"atoll.dev/bench/report"
)

var (
	broker   = flag.String("broker", bed.Embedded, "embedded or mosquitto")
	clusters = flag.Int("clusters", 1000, "management clusters")
	works    = flag.Int("works", 100, "works of each")
	size     = flag.Int("size", 512, "bytes of a work's manifest")
	digests  = flag.String("digests", "both",
		"how agents compare: true (by digests), false (by lists), or both, one after the other")
	changed = flag.Int("changed", 5,
		"works of each cluster whose status changes while the broker or the server is away")
	outage      = flag.Duration("outage", 5*time.Second, "how long it is away")
	rest        = flag.Duration("rest", 20*time.Second, "how long nothing is asked of the server before it is weighed")
	concurrency = flag.Int("concurrency", 32, "concurrent publishers")
	seed        = flag.Uint64("seed", 1, "of the works' content")
	pprof       = flag.String("pprof", "", "the server serves profiles on this address")
	verbose     = flag.Bool("v", false, "show warnings of server and broker")
)

func main() {
	bed.RunPart()
	flag.Parse()
	if *broker != bed.Embedded && *broker != bed.Mosquitto {
		log.Fatalf("-broker %q is neither embedded nor mosquitto", *broker)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // what was started is ended
	err := run(ctx)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	forms, ok := map[string][]bool{"both": {true, false}, "true": {true}, "false": {false}}[*digests]
	if !ok {
		return fmt.Errorf("-digests %q is neither true, false nor both", *digests)
	}
	b, err := bed.New(ctx, bed.Options{Broker: *broker, Seed: *seed, Apart: true, Verbose: *verbose, Pprof: *pprof})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	f := &fleet{b: b, want: make(map[string]int64, *clusters**works)}
	f.digests.Store(forms[0])
	if err := f.begin(ctx); err != nil {
		return err
	}
	if err := f.steady(ctx); err != nil {
		return err
	}
	for _, form := range forms {
		if err := f.compareBy(ctx, form); err != nil {
			return err
		}
		for _, victim := range []struct {
			name string
			p    bed.Process
		}{{"broker", b.Broker}, {"server", b.Server}} {
			if err := f.kill(ctx, victim.name, victim.p); err != nil {
				return fmt.Errorf("%s killed, digests %v: %w", victim.name, form, err)
			}
		}
	}
	return nil
}

// fleet is all clusters, and what they are to hold.
type fleet struct {
	b       *bed.Bed
	agents  []*agent
	digests atomic.Bool
	killed  int

	mu   sync.Mutex
	want map[string]int64 // generations
}

// compareBy gives all clusters an agent that compares by digests, or by lists,
// and has it say so, as it does when it connects.
func (f *fleet) compareBy(ctx context.Context, digests bool) error {
	f.digests.Store(digests)
	for _, a := range f.agents {
		a.connected(ctx)
	}
	conn, err := pgx.Connect(ctx, f.b.DSN)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	wanted := 0
	if digests {
		wanted = len(f.agents)
	}
	return bed.Await(ctx, 50*time.Millisecond, func() error {
		var n int
		if err := conn.QueryRow(ctx, `select count(*) from agent_digest`).Scan(&n); err != nil || n != wanted {
			return fmt.Errorf("%d agents compare by digests, not %d: %w", n, wanted, err)
		}
		return nil
	})
}

// owner is the agent of the i-th work; a cluster's works are not neighbours.
func (f *fleet) owner(i int) *agent { return f.agents[i%len(f.agents)] }

func (f *fleet) params() map[string]any {
	return map[string]any{"broker": *broker, "clusters": *clusters, "works_of_each": *works, "manifest_bytes": *size,
		"seed": *seed}
}

// begin connects the clusters and gives them their works.
func (f *fleet) begin(ctx context.Context) error {
	if err := f.b.Register(*clusters); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	f.b.OnClose(func() error { cancel(); running.Wait(); return nil })
	for i := range *clusters {
		a, err := newAgent(f.b, bed.Consumer(i), &f.digests)
		if err != nil {
			return err
		}
		f.agents = append(f.agents, a)
		running.Go(func() { _ = a.client.Run(ctx) })
	}
	running.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				for _, a := range f.agents {
					a.tick(now)
				}
			}
		}
	})
	if err := bed.Await(ctx, 20*time.Millisecond, f.connected); err != nil {
		return err
	}
	begun := time.Now()
	n := *clusters * *works
	if err := bed.Many(n, *concurrency, func(i int) error {
		return f.ask(ctx, work.SpecCreate, i)
	}); err != nil {
		return err
	}
	accepted := time.Since(begun)
	if err := bed.Await(ctx, 500*time.Millisecond, func() error { return f.agree(ctx) }); err != nil {
		return fmt.Errorf("giving clusters their works: %w", err)
	}
	return report.Line(os.Stdout, "fleet/begin", f.params(), map[string]any{
		"accepted_per_second": round(float64(n) / accepted.Seconds()), "applied_per_second": round(
			float64(n) / time.Since(begun).Seconds())})
}

func round(v float64) float64 { return float64(int(v*10+.5)) / 10 }

func (f *fleet) connected() error {
	for _, a := range f.agents {
		if !a.client.Connected() {
			return fmt.Errorf("%s is not connected", a.name)
		}
	}
	return nil
}

// ask makes the i-th work, or changes it. The same event goes again until it
// is accepted: one that was accepted before changes nothing.
func (f *fleet) ask(ctx context.Context, kind string, i int) error {
	id := bed.ID(i)
	e := f.b.Spec(kind, f.owner(i).name, id, *size)
	f.mu.Lock()
	f.want[id]++
	f.mu.Unlock()
	return bed.Await(ctx, 100*time.Millisecond, func() error { return f.b.Publish(ctx, e) })
}

// agree says what is not yet as it must be.
func (f *fleet) agree(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, f.b.DSN)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var open int
	if err := conn.QueryRow(
		ctx, `select count(*) from ledger where gone_at is null and (deleting or wanted > acknowledged)`).Scan(
		&open); err != nil {
		return err
	}
	if open > 0 {
		return fmt.Errorf("the ledger has %d works unacknowledged", open)
	}
	rows, err := conn.Query(
		ctx, `select id, acknowledged, status_hash from ledger where gone_at is null and not deleting`)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var id, hash, first string
	var acknowledged int64
	n, wrong := 0, 0
	if _, err := pgx.ForEachRow(rows, []any{&id, &acknowledged, &hash}, func() error {
		var i int
		if _, err := fmt.Sscanf(id, "w%d", &i); err != nil {
			return err
		}
		n++
		if has := f.owner(i).holds(id); f.want[id] != acknowledged || has.generation != acknowledged ||
			has.hash != hash {
			wrong++
			first = fmt.Sprintf("%s is wanted at %d, acknowledged at %d with status %.8s; %s has %d with %.8s", id,
				f.want[id], acknowledged, hash, f.owner(i).name, has.generation, has.hash)
		}
		return nil
	}); err != nil {
		return err
	}
	if wrong > 0 || n != len(f.want) {
		return fmt.Errorf("of %d works %d are in the ledger, %d are wrong: %s", len(f.want), n, wrong, first)
	}
	return nil
}

// steady weighs the server when it has been left alone for a while.
func (f *fleet) steady(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(*rest):
	}
	now, most, err := bed.Memory(f.b.Server)
	if err != nil {
		return err
	}
	return report.Line(os.Stdout, "fleet/steady", f.params(), map[string]any{"server_resident_mib": now,
		"server_resident_max_mib": most})
}

// kill kills the server or the broker while works are being changed, has
// statuses change while it is away, starts it again and takes the time until
// all agree.
func (f *fleet) kill(ctx context.Context, name string, p bed.Process) error {
	f.killed++
	half := make(chan struct{})
	var accepted atomic.Int64
	asked := make(chan error, 1)
	go func() {
		asked <- bed.Many(*clusters, *concurrency, func(i int) error {
			err := f.ask(ctx, work.SpecUpdate, i)
			if accepted.Add(1) == int64(*clusters+1)/2 {
				close(half)
			}
			return err
		})
	}()
	<-half
	p.Kill()
	for i, a := range f.agents {
		var ids []string
		for k := range min(*changed, *works-1) {
			ids = append(ids, bed.ID(i+(k+1)**clusters))
		}
		a.change(ids, fmt.Sprint("away ", f.killed))
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(*outage):
	}
	begun := time.Now()
	if err := p.Start(); err != nil {
		return err
	}
	figures := map[string]any{"serving_after_s": seconds(begun)}
	if err := bed.Await(ctx, 20*time.Millisecond, f.connected); err != nil {
		return err
	}
	figures["connected_after_s"] = seconds(begun)
	if err := <-asked; err != nil {
		return err
	}
	figures["accepted_after_s"] = seconds(begun)
	if err := bed.Await(ctx, 200*time.Millisecond, func() error { return f.agree(ctx) }); err != nil {
		return err
	}
	figures["converged_after_s"] = seconds(begun)
	begun = time.Now()
	if err := bed.Many(*clusters, *concurrency, func(i int) error {
		return f.ask(ctx, work.SpecUpdate,
			i+*clusters*(*works-1))
	}); err != nil {
		return err
	}
	if err := bed.Await(ctx, 200*time.Millisecond, func() error { return f.agree(ctx) }); err != nil {
		return fmt.Errorf("a change in each cluster afterwards: %w", err)
	}
	figures["change_in_each_s"] = seconds(begun)
	now, most, err := bed.Memory(f.b.Server)
	if err != nil {
		return err
	}
	figures["server_resident_mib"], figures["server_resident_max_mib"] = now, most
	params := f.params()
	params["digests"], params["outage_s"], params["statuses_changed"] = f.digests.Load(), outage.Seconds(),
		*clusters*min(*changed, *works-1)
	return report.Line(os.Stdout, "fleet/"+name+"-killed", params, figures)
}

func seconds(since time.Time) float64 { return float64(time.Since(since).Milliseconds()) / 1000 }
