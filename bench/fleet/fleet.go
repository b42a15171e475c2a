package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/api/work"
	"atoll.dev/bench/bed"
)

// fleet has all management clusters, and the generation that each of their works must have.
type fleet struct {
	bed         *bed.Bed
	clusters    int
	worksOfEach int
	size        int // bytes of a work's manifest
	agents      []*agent
	digests     atomic.Bool
	phases      int // that changed statuses

	mu   sync.Mutex
	want []int64 // generations, by the work's number
}

func newFleet(b *bed.Bed, clusters, works, size int) *fleet {
	return &fleet{bed: b, clusters: clusters, worksOfEach: works, size: size, want: make([]int64, clusters*works)}
}

// The k-th work of a cluster has the number cluster + k*clusters, so the works of a cluster are not neighbours.

// id returns the id of the k-th work of a cluster.
func (f *fleet) id(cluster, k int) string { return bed.ID(cluster + k*f.clusters) }

// numberOf returns the number of a work; false when the fleet has no such work.
func (f *fleet) numberOf(id string) (int, bool) {
	digits, found := strings.CutPrefix(id, "w")
	n, err := strconv.Atoi(digits)
	return n, found && err == nil && n >= 0 && n < f.clusters*f.worksOfEach
}

// indexOf returns the index of a work among the works of a cluster; false for a work of another cluster.
func (f *fleet) indexOf(cluster int, id string) (k int, ours bool) {
	n, ok := f.numberOf(id)
	return n / f.clusters, ok && n%f.clusters == cluster
}

// register makes the consumers of all clusters.
func (f *fleet) register() error { return f.bed.Register(f.clusters) }

// connect makes the agents and waits until all are connected. They run until the bed is closed.
func (f *fleet) connect(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	f.bed.OnClose(func() error { cancel(); running.Wait(); return nil })
	for _, a := range f.agents {
		running.Go(func() { _ = a.client.Run(ctx) })
	}
	running.Go(func() {
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				for _, a := range f.agents {
					a.sendDue(now)
				}
			}
		}
	})
	return bed.Await(ctx, 20*time.Millisecond, f.allConnected)
}

// makeAgents makes the agents of all clusters, without any work.
func (f *fleet) makeAgents() error {
	f.agents = make([]*agent, f.clusters)
	return bed.Many(f.clusters, 4, func(i int) (err error) {
		f.agents[i], err = newAgent(f, i)
		return err
	})
}

// allConnected returns an error that names the agents without a connection.
func (f *fleet) allConnected() error {
	return namedError("not connected", f.agentsThat(func(a *agent) bool { return !a.client.Connected() }))
}

// agentsThat returns the names of the agents that fulfil a condition.
func (f *fleet) agentsThat(condition func(*agent) bool) (names []string) {
	for _, a := range f.agents {
		if condition(a) {
			names = append(names, a.name)
		}
	}
	return names
}

// namedError returns an error about some agents, nil for no agent.
func namedError(what string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	const most = 20
	more := ""
	if len(names) > most {
		more = " ..."
	}
	return fmt.Errorf("%d agents: %s: %s%s", len(names), what, strings.Join(names[:min(len(names), most)], " "), more)
}

// order makes the i-th work, or changes it, through the API. It repeats the event until the server accepts it: an event
// that was accepted before changes nothing.
func (f *fleet) order(ctx context.Context, kind string, i int) error {
	e := f.bed.Spec(kind, bed.Consumer(i%f.clusters), bed.ID(i), f.size)
	f.mu.Lock()
	f.want[i]++
	f.mu.Unlock()
	return bed.AwaitFor(ctx, *limit, 100*time.Millisecond, func() error { return f.bed.Publish(ctx, e) })
}

// changeMany changes works through the API, with *concurrency publishers. It calls accepted after each.
func (f *fleet) changeMany(ctx context.Context, works []int, accepted func()) error {
	return bed.Many(len(works), *concurrency, func(i int) error {
		err := f.order(ctx, work.SpecUpdate, works[i])
		accepted()
		return err
	})
}

// ofEach returns the number of the k-th work of each cluster.
func (f *fleet) ofEach(k int) []int {
	works := make([]int, f.clusters)
	for i := range works {
		works[i] = i + k*f.clusters
	}
	return works
}

// comparison is how agents compare their works with the server's.
type comparison string

// The comparisons.
const (
	byLists   comparison = "lists"
	byDigests comparison = "digests"
)

// compareBy sets how all agents compare, and waits until the server has recorded it.
func (f *fleet) compareBy(ctx context.Context, by comparison) error {
	f.digests.Store(by == byDigests)
	for _, a := range f.agents {
		a.connected(ctx)
	}
	want := 0
	if by == byDigests {
		want = len(f.agents)
	}
	return f.query(ctx, func(conn *pgx.Conn) error {
		return bed.AwaitFor(ctx, *limit, 50*time.Millisecond, func() error {
			var n int
			err := conn.QueryRow(ctx, `select count(*) from agent_digest where consumer like 'mc%'`).Scan(&n)
			if err == nil && n != want {
				err = fmt.Errorf("the server knows that %d agents compare by digests, not %d", n, want)
			}
			return err
		})
	})
}

// query calls f with a connection to the server's database.
func (f *fleet) query(ctx context.Context, call func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, f.bed.DSN)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return call(conn)
}

// awaitAgreement waits until the ledger has acknowledged everything and agrees with the agents about some works; then,
// where agents compare by digests, until the server has answered each agent after since that nothing differs; and then
// until all works agree. It sets the times as figures. It fails, and names the agents, when one does not agree within
// *limit.
func (f *fleet) awaitAgreement(ctx context.Context, since, begun time.Time, works []int, figures map[string]any) error {
	if err := bed.AwaitFor(ctx, *limit, 200*time.Millisecond, func() error {
		return f.compareWorks(ctx, works)
	}); err != nil {
		return err
	}
	figures["works_agree_after_s"] = seconds(begun)
	if f.digests.Load() {
		if err := bed.AwaitFor(ctx, *limit, 100*time.Millisecond, func() error {
			return namedError("no answer that nothing differs", f.agentsThat(func(a *agent) bool {
				return !a.agreedSince(since)
			}))
		}); err != nil {
			return err
		}
		figures["agents_agree_after_s"] = seconds(begun)
	}
	if err := bed.AwaitFor(ctx, *limit, time.Second, func() error { return f.compareAll(ctx) }); err != nil {
		return err
	}
	figures["all_compared_after_s"] = seconds(begun)
	return nil
}

// compareWorks returns an error unless the ledger has acknowledged all works, and agrees with the agents about these.
func (f *fleet) compareWorks(ctx context.Context, works []int) error {
	return f.query(ctx, func(conn *pgx.Conn) error {
		var unacknowledged int
		if err := conn.QueryRow(ctx, `select count(*) from ledger
			where gone_at is null and (deleting or wanted > acknowledged)`).Scan(&unacknowledged); err != nil {
			return err
		}
		if unacknowledged > 0 {
			return fmt.Errorf("the ledger has %d unacknowledged works", unacknowledged)
		}
		ids := make([]string, len(works))
		for i, n := range works {
			ids[i] = bed.ID(n)
		}
		return f.compareRows(ctx, conn, works, ` and id = any($1)`, ids)
	})
}

// compareAll returns an error unless the ledger agrees with the agents about all works. The error names the agents.
func (f *fleet) compareAll(ctx context.Context) error {
	all := make([]int, f.clusters*f.worksOfEach)
	for i := range all {
		all[i] = i
	}
	return f.query(ctx, func(conn *pgx.Conn) error { return f.compareRows(ctx, conn, all, "") })
}

// compareRows compares rows of the ledger, which are to be those of works, with the agents' works and with the wanted
// generations.
func (f *fleet) compareRows(ctx context.Context, conn *pgx.Conn, works []int, condition string, args ...any) error {
	rows, err := conn.Query(ctx, `select id, consumer, wanted, acknowledged, status_hash from ledger
		where gone_at is null and not deleting`+condition, args...)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var id, consumer, hash, example string
	var wanted, acknowledged int64
	agrees := make([]bool, f.clusters*f.worksOfEach)
	if _, err := pgx.ForEachRow(rows, []any{&id, &consumer, &wanted, &acknowledged, &hash}, func() error {
		i, ok := f.numberOf(id)
		if !ok {
			return fmt.Errorf("the ledger has work %s of %s, which was not made", id, consumer)
		}
		a := f.agents[i%f.clusters]
		generation, status := a.held(i / f.clusters)
		if agrees[i] = consumer == a.name && f.want[i] == wanted && wanted == acknowledged &&
			generation == acknowledged && status == hash; !agrees[i] {
			example = fmt.Sprintf("%s of %s was ordered at %d, is wanted at %d and acknowledged at %d with status %.8s; "+
				"%s holds %d with %.8s", id, consumer, f.want[i], wanted, acknowledged, hash, a.name, generation, status)
		}
		return nil
	}); err != nil {
		return err
	}
	differ := make([]int, f.clusters) // works of each cluster
	for _, i := range works {
		if !agrees[i] {
			differ[i%f.clusters]++
			example = cmp.Or(example, fmt.Sprintf("the ledger has no work %s of %s", bed.ID(i), bed.Consumer(i%f.clusters)))
		}
	}
	if err := namedError("their works differ from the ledger's", f.agentsThat(func(a *agent) bool {
		return differ[a.number] > 0
	})); err != nil {
		return fmt.Errorf("%w; for example %s", err, example)
	}
	return nil
}

func seconds(since time.Time) float64 { return float64(time.Since(since).Milliseconds()) / 1000 }

func round(v float64) float64 { return float64(int(v*1000+.5)) / 1000 }
