package fleet

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"atoll.dev/api/clm"
	api "atoll.dev/api/fleet"
	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// BenchmarkDecide is the decision alone, with its reasons, among 100 management
// clusters.
func BenchmarkDecide(b *testing.B) {
	for name, planes := range map[string]int64{"fits": 101, "full": 100} {
		fleet := make([]ManagementCluster, 100)
		for i := range fleet {
			fleet[i] = ManagementCluster{ID: fmt.Sprint(i), Name: fmt.Sprintf("m%03d", i), State: api.Ready, Capacity: Amounts{"planes": planes, "memory_mib": 40_000}, Reserved: Amounts{"planes": 100, "memory_mib": 35_000}}
		}
		d := Demand{Version: "1.36.3", Amounts: Amounts{"planes": 1, "memory_mib": 350}}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Decide(d, fleet)
			}
		})
	}
}

// BenchmarkPlace places clusters by REST on 100 management clusters that host
// 10,000 already, one after the other and 16 at a time.
func BenchmarkPlace(b *testing.B) {
	bed := startOn(b, pgtest.DSN(b), Options{Sweep: time.Hour}) // the clusters of those 10,000 do not exist
	ctx := b.Context()
	one := Amounts{"planes": 1, "memory_mib": 350}
	for i := range 100 {
		id := bed.mc(fmt.Sprintf("m%03d", i), `{"capacity":{"planes":100000},"versions":["1.36.3"]}`, map[string]string{"zone": "a"})
		err := bed.fleet.store.Tx(ctx, func(tx *store.Tx) error {
			for j := range 100 {
				d := store.Document{Kind: KindPlacement, ID: placementID(fmt.Sprintf("p-%d-%d", i, j))}
				p := placement{placementWanted{fmt.Sprintf("p-%d-%d", i, j), Demand{Amounts: one}}, placementMade{State: api.Placed, ManagementClusterID: id}}
				if err := p.into(&d); err != nil {
					return err
				}
				if _, err := tx.Create(ctx, d); err != nil {
					return err
				}
			}
			return setReservation(ctx, tx, id, sum{100, Amounts{"planes": 100, "memory_mib": 35_000}})
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	made := 0
	for _, width := range []int{1, 16} {
		b.Run(fmt.Sprintf("at_once=%d", width), func(b *testing.B) {
			ids := make(chan string, b.N)
			for range b.N {
				made++
				r, err := bed.Create(ctx, clustersOf, clm.ResourceCreate{Kind: "Cluster", Name: fmt.Sprintf("c-%d", made), Spec: json.RawMessage(`{}`)}, "")
				if err != nil {
					b.Fatal(err)
				}
				ids <- r.ID
			}
			close(ids)
			var mu sync.Mutex
			var took []time.Duration
			var wait sync.WaitGroup
			b.ResetTimer()
			for range width {
				wait.Go(func() {
					for id := range ids {
						begun := time.Now()
						if p, err := bed.Place(ctx, id); err != nil || p.State != api.Placed {
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
