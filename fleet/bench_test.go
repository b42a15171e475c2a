package fleet

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// BenchmarkDecide measures one decision with its explanation, among 100 and among 1,000 management clusters.
func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{100, 1000} {
		for name, planes := range map[string]int64{"fits": 101, "full": 100} {
			fleet := make([]ManagementCluster, n)
			for i := range fleet {
				fleet[i] = ManagementCluster{ID: cluster.ManagementClusterID(fmt.Sprint(i)),
					Name: cluster.ManagementCluster(fmt.Sprintf("m%03d", i)), State: api.Ready,
					Capacity: Amounts{"planes": planes, "memory_mib": 40_000}, Reserved: Amounts{"planes": 100,
						"memory_mib": 35_000}}
			}
			d := Demand{Version: "1.36.3", Amounts: Amounts{"planes": 1, "memory_mib": 350}}
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					Decide(d, fleet)
				}
			})
		}
	}
}

// BenchmarkPlace places clusters by REST in a region of 1,000 management clusters
// that host 50,000 clusters, with the settings that a region has: one after the
// other, 16 at a time, and without room. It first measures the process
// without requests.
func BenchmarkPlace(b *testing.B) {
	bed := region(b, 1000, 50)
	ctx := b.Context()
	figures := alone(b, bed)
	b.Run("alone", func(b *testing.B) {
		for name, value := range figures {
			b.ReportMetric(value, name)
		}
	})
	made := 0
	for _, c := range []struct {
		name, spec string
		width      int
		want       api.PlacementState
	}{
		{"at_once=1", `{}`, 1, api.Placed},
		{"at_once=16", `{}`, 16, api.Placed},
		{"no_room", `{"placement":{"selector":{"zone":"none"}}}`, 1, api.Waiting},
	} {
		b.Run(c.name, func(b *testing.B) {
			ids := make(chan string, b.N)
			for range b.N {
				made++
				ids <- bed.cluster(fmt.Sprintf("c-%d", made), c.spec)
			}
			close(ids)
			var mu sync.Mutex
			var took []time.Duration
			var wait sync.WaitGroup
			b.ResetTimer()
			for range c.width {
				wait.Go(func() {
					for id := range ids {
						begun := time.Now()
						if p, err := bed.Place(ctx, cluster.ID(id)); err != nil || p.State != c.want {
							b.Errorf("%+v, %v", p.State, err)
						}
						mu.Lock()
						took = append(took, time.Since(begun))
						mu.Unlock()
					}
				})
			}
			wait.Wait()
			b.StopTimer()
			slices.Sort(took)
			b.ReportMetric(float64(len(took))/b.Elapsed().Seconds(), "placements/s")
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

// region starts a process over a database with management clusters, each with the given number of clusters. SQL copies
// one cluster and placement before the process starts.
func region(b *testing.B, managementClusters, each int) *testRegion {
	dsn := pgtest.DSN(b)
	first := startOn(b, dsn, Options{})
	for i := range managementClusters {
		first.mc(fmt.Sprintf("m%04d", i), `{"capacity":{"planes":100,"memory_mib":40000},"versions":["1.36.3"]}`,
			map[string]string{"zone": "a"})
	}
	id := first.cluster("first", `{}`)
	first.place(id)
	first.end()
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{
		`create temporary table host as select id, name, row_number() over (order by name) - 1 as n from document where kind = 'ManagementCluster'`,
		`insert into document (kind, id, scope, name, version, generation, spec, status, head, wire, created_at, updated_at, token)
			select kind, 'copy-' || n, scope, 'copy-' || n, version, generation, spec, status, head, wire, created_at, updated_at, n
			from document, generate_series(1, ` + fmt.Sprint(managementClusters*each) + `) n where kind = 'Cluster'`,
		`insert into document (kind, id, scope, name, version, generation, spec, status, head, wire, created_at, updated_at, token)
			select d.kind, 'placement-copy-' || i.n, d.scope, d.name, d.version, d.generation, jsonb_set(d.spec, '{cluster_id}', to_jsonb('copy-' || i.n)),
				d.status || jsonb_build_object('management_cluster', h.name, 'management_cluster_id', h.id), d.head, d.wire, d.created_at, d.updated_at, i.n
			from document d, generate_series(1, ` + fmt.Sprint(managementClusters*each) + `) i (n) join host h on h.n = i.n % ` + fmt.Sprint(managementClusters) + ` where d.kind = 'Placement'`,
		`delete from reservation`,
		`insert into reservation select status->>'management_cluster_id', count(*), jsonb_build_object('planes', count(*), 'memory_mib', 350 * count(*))
			from document where kind = 'Placement' group by 1`,
		`analyze document`,
	} {
		if _, err := conn.Exec(context.Background(), sql); err != nil {
			b.Fatal(err)
		}
	}
	bed := startOn(b, dsn, Options{})
	bed.eventually("the inventory has all placements", func() (yes bool) {
		bed.fleet.shared.use(func(inv *inventory) { yes = len(inv.entries) > managementClusters*each })
		return yes
	})
	return bed
}

// alone measures the process without requests: reading all documents, as after a lost feed; comparing all, as once an
// hour; and one minute at rest with its periodic work.
func alone(b *testing.B, bed *testRegion) map[string]float64 {
	figures := map[string]float64{}
	used := func() time.Duration {
		var r syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	begun, before := time.Now(), used()
	fresh := newInventory()
	for _, kind := range []store.Kind{kindMC, KindPlacement} {
		if err := bed.fleet.load(b.Context(), fresh, kind); err != nil {
			b.Fatal(err)
		}
	}
	figures["read-all-ms"], figures["read-all-cpu-ms"] = float64(time.Since(begun).Milliseconds()),
		float64((used() - before).Milliseconds())
	begun = time.Now()
	if err := bed.fleet.compare(b.Context()); err != nil {
		b.Fatal(err)
	}
	figures["compare-all-ms"] = float64(time.Since(begun).Milliseconds())
	begun, before = time.Now(), used()
	<-time.After(time.Minute)
	figures["rest-cpu-ms/s"] = float64((used() - before).Milliseconds()) / time.Since(begun).Seconds()
	fresh = nil
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	figures["heap-MiB"] = float64(m.HeapAlloc >> 20)
	return figures
}
