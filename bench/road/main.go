// Command road measures the main road of a running region: from a signed POST
// of a work until a watcher of the API sees Applied=True.
//
//	atoll up --detach && go run ./bench/road -rate 20 -works 1200 && go run ./bench/road -inflight 100 -works 3000
//
// It prints JSON lines and leaves nothing in the region.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/api/work"
	"atoll.dev/bench/bed"
	"atoll.dev/bench/report"
	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
)

func main() {
	rate := flag.Float64("rate", 0, "works per second, open loop; 0: closed loop")
	inflight := flag.Int("inflight", 100, "works in flight in the closed loop")
	works := flag.Int("works", 600, "works")
	cluster := flag.String("cluster", "management-01", "management cluster")
	flag.Parse()
	if err := run(*rate, *inflight, *works, *cluster); err != nil {
		fmt.Fprintln(os.Stderr, "road:", err)
		os.Exit(1)
	}
}

// road is one run: what was posted when, and when it was seen applied.
type road struct {
	api     *client.Client
	cluster string
	run     string

	mu     sync.Mutex
	posted map[string]time.Time // by bundle id
	waits  []time.Duration      // POST to Applied
	posts  []time.Duration      // POST to its answer
	done   chan struct{}        // gets one for each applied work
	errs   []error
}

func run(rate float64, inflight, works int, cluster string) error {
	api, err := client.New(client.Options{
		Endpoint: os.Getenv("ATOLL_ENDPOINT"), CAFile: os.Getenv("ATOLL_CA"),
		Credentials: client.Credentials{AccessKeyID: os.Getenv("AWS_ACCESS_KEY_ID"), SecretAccessKey: os.Getenv(
			"AWS_SECRET_ACCESS_KEY"), Region: os.Getenv("AWS_REGION")},
	})
	if err != nil {
		return fmt.Errorf("%w; first: eval \"$(atoll env)\"", err)
	}
	r := &road{api: api, cluster: cluster, run: strconv.FormatInt(time.Now().Unix(), 36),
		posted: map[string]time.Time{}, done: make(chan struct{}, works)}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	watching := make(chan struct{})
	go r.watch(ctx, watching)
	<-watching

	begun := time.Now()
	if rate > 0 {
		r.openLoop(ctx, rate, works)
	} else {
		r.closedLoop(ctx, inflight, works)
	}
	took := time.Since(begun)
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.waits)
	slices.Sort(r.posts)
	report.Line(os.Stdout, "road", map[string]any{"rate": rate, "inflight": inflight, "works": works}, map[string]any{
		"applied": len(r.waits), "failed": len(r.errs), "works_per_s": float64(len(r.waits)) / took.Seconds(),
		"post_to_applied_ms": quantiles(r.waits), "post_ms": quantiles(r.posts),
	})
	if len(r.errs) > 0 {
		return fmt.Errorf("%d posts failed, the first: %w", len(r.errs), r.errs[0])
	}
	return r.cleanUp(ctx)
}

func quantiles(sorted []time.Duration) map[string]float64 {
	q := map[string]float64{}
	for name, p := range map[string]float64{"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1} {
		if len(sorted) > 0 {
			q[name] = float64(sorted[min(int(p*float64(len(sorted))), len(sorted)-1)].Microseconds()) / 1000
		}
	}
	return q
}

func (r *road) watch(ctx context.Context, watching chan struct{}) {
	var once sync.Once
	err := r.api.FollowBundles(ctx, remote.WatchOptions{Consumer: work.Consumer(r.cluster),
		Fields: "id,version,status.conditions"},
		func(e remote.Event) error {
			now := time.Now()
			if e.Type == "BOOKMARK" {
				once.Do(func() { close(watching) })
			}
			if len(e.Object) == 0 {
				return nil
			}
			var b platform.ResourceBundle
			if err := json.Unmarshal(e.Object, &b); err != nil || b.Status == nil {
				return err
			}
			for _, c := range b.Status.Conditions {
				if c.Type == "Applied" && c.Status == "True" {
					r.seen(b.ID, now)
				}
			}
			return nil
		})
	if ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "road: watch:", err)
		os.Exit(1)
	}
}

func (r *road) seen(id string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.posted[id]; ok {
		delete(r.posted, id)
		r.waits = append(r.waits, now.Sub(at))
		r.done <- struct{}{}
	}
}

func (r *road) name(i int) string { return fmt.Sprintf("road-%s-%d", r.run, i) }

func (r *road) post(ctx context.Context, i int) error {
	name := r.name(i)
	id := work.BundleID(work.SourcePlatform, work.Consumer(r.cluster), name)
	begun := time.Now()
	r.mu.Lock()
	r.posted[string(id)] = begun
	r.mu.Unlock()
	_, err := r.api.CreateWork(ctx, cluster.ManagementCluster(r.cluster), json.RawMessage(
		fmt.Sprintf(`{"apiVersion":"work.open-cluster-management.io/v1","kind":"ManifestWork",
		"metadata":{"name":%q},"spec":{"workload":{"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"default"},"data":{"k":"v"}}]}}}`, name, name)))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.posts = append(r.posts, time.Since(begun))
	if err != nil {
		delete(r.posted, string(id))
		r.errs = append(r.errs, err)
		r.done <- struct{}{}
	}
	return err
}

// openLoop posts at its rate, whatever the region's answers take.
func (r *road) openLoop(ctx context.Context, rate float64, works int) {
	tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer tick.Stop()
	for i := range works {
		<-tick.C
		go r.post(ctx, i)
	}
	for range works {
		<-r.done
	}
}

// closedLoop keeps so many works between POST and Applied.
func (r *road) closedLoop(ctx context.Context, inflight, works int) {
	finished := 0
	for i := range works {
		if i >= inflight {
			<-r.done
			finished++
		}
		go r.post(ctx, i)
	}
	for ; finished < works; finished++ {
		<-r.done
	}
}

// cleanUp deletes the run's works and returns when they are gone, so that the
// next run finds the region idle.
func (r *road) cleanUp(ctx context.Context) error {
	for {
		list, err := r.api.Works(ctx, cluster.ManagementCluster(r.cluster))
		if err != nil {
			return err
		}
		left := 0
		var ids []work.ID // whose deletion is not requested yet
		for _, w := range list {
			if !strings.HasPrefix(w.Name, "road-") {
				continue
			}
			left++
			if w.DeletedAt == nil {
				ids = append(ids, work.ID(w.ID))
			}
		}
		if err := bed.Many(len(ids), 16, func(i int) error { return r.api.DeleteWork(ctx, ids[i], "") }); err != nil {
			return err
		}
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
