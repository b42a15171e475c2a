package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	neturl "net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/bench/bed"
	"atoll.dev/clm/status"
)

const (
	base = "/api/hyperfleet/v1/clusters"

	alike     = 100 // clusters that share a label
	page      = 100
	repeating = 400 // clusters whose reports come again and again
)

// bench has a server and what is stored there.
type bench struct {
	target   *target
	http     *http.Client
	ids      []string
	adapters []string
	next     atomic.Int64 // of names
	again    []string     // reports as they were sent, of the first clusters
}

func newBench(at *target) (*bench, error) {
	// Compression would be the client's wish, and is not measured.
	transport := &http.Transport{MaxConnsPerHost: *connections + 2, MaxIdleConnsPerHost: *connections + 2,
		DisableCompression: true}
	return &bench{target: at, http: &http.Client{Transport: transport}, adapters: strings.Split(*adapters, ",")}, nil
}

func (b *bench) params() map[string]any {
	return map[string]any{"clusters": *clusters, "connections": *connections, "seconds": duration.Seconds(),
		"reported": *reported, "seed": *seed}
}

// call sends one request and reads its answer. want is the status.
func (b *bench) call(ctx context.Context, method, path, body string, want int) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, b.target.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := b.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != want {
		return nil, fmt.Errorf("%s %s: %s %.300s", method, path, resp.Status, data)
	}
	return data, nil
}

// spec makes a spec of about size bytes, another one each time: a few fields, as clusters have, and text.
func spec(r *rand.Rand, size int) string {
	head := fmt.Sprintf(
		`{"region":"eu-west-%d","version":"4.%d.%d","network":{"pod_cidr":"10.%d.0.0/14","service_cidr":"172.30.0.0/16",`+
			`"host_prefix":23},`+
			`"replicas":%d,"multi_az":true,"properties":{`, r.IntN(4), r.IntN(20), r.IntN(40), r.IntN(250),
		3+r.IntN(30))
	var s strings.Builder
	s.WriteString(head)
	for i := 0; s.Len() < size-60; i++ {
		if i > 0 {
			s.WriteByte(',')
		}
		fmt.Fprintf(&s, `"key-%02d":"`, i)
		for range 48 {
			s.WriteByte("abcdefghijklmnopqrstuvwxyz0123456789"[r.IntN(36)])
		}
		s.WriteByte('"')
	}
	s.WriteString("}}")
	return s.String()
}

func (b *bench) cluster(r *rand.Rand, size int) string {
	n := int(b.next.Add(1)) - 1
	return fmt.Sprintf(`{"kind":"Cluster","name":"bench-%07d","labels":{"group":"g%d","env":"bench"},"spec":%s}`, n,
		n/alike, spec(r, size))
}

// statusReport returns the JSON of a report at a time. available is the status of its condition Available.
func statusReport(adapter string, generation int, available status.Value, at time.Time, note string) string {
	return fmt.Sprintf(`{"adapter":%q,"observed_generation":%d,"observed_time":%q,"conditions":[`+
		`{"type":"Available","status":%q,"reason":"Checked","message":"%s"},{"type":"Applied","status":"True",`+
		`"reason":"Applied","message":"all is applied"},`+
		`{"type":"Health","status":"True","reason":"Healthy","message":"no errors"}],"data":{"job":{"name":"job-%s",`+
		`"attempts":1}}}`,
		adapter, generation, at.UTC().Format(time.RFC3339Nano), string(available), note, note)
}

// fill stores the clusters.
func (b *bench) fill(ctx context.Context) error {
	b.ids = make([]string, *clusters)
	return bed.Many(*clusters, *connections, func(i int) error {
		r := rand.New(rand.NewPCG(*seed, uint64(i)))
		data, err := b.call(ctx, "POST", base, b.cluster(r, 1024), http.StatusCreated)
		if err != nil {
			return err
		}
		var made struct{ ID string }
		if err := json.Unmarshal(data, &made); err != nil {
			return err
		}
		b.ids[i] = made.ID
		if *reported {
			for _, adapter := range b.adapters {
				if _, err := b.call(ctx, "PUT", base+"/"+made.ID+"/statuses", statusReport(adapter, 1, status.True, time.Now(),
					"filled"), http.StatusCreated); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// vacuum vacuums and analyzes the database that this program has started, as autovacuum would later.
func (b *bench) vacuum(ctx context.Context) error {
	if b.target.dsn == "" {
		return nil
	}
	conn, err := pgx.Connect(ctx, b.target.dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "vacuum analyze")
	return err
}

// row is one measurement: prepare, if there is one, is called before, and one makes a request and checks its answer.
type row struct {
	name    string
	prepare func(ctx context.Context) error
	one     func(ctx context.Context, r *rand.Rand) error
}

func (b *bench) rows() []row {
	some := func(r *rand.Rand) string { return b.ids[r.IntN(len(b.ids))] }
	post := func(size int) func(context.Context, *rand.Rand) error {
		return func(ctx context.Context, r *rand.Rand) error {
			_, err := b.call(ctx, "POST", base, b.cluster(r, size), http.StatusCreated)
			return err
		}
	}
	list := func(query string, items int) func(context.Context, *rand.Rand) error {
		return func(ctx context.Context, r *rand.Rand) error {
			q := strings.Replace(query, "GROUP", fmt.Sprint("g", r.IntN(*clusters/alike)), 1)
			data, err := b.call(ctx, "GET", base+"?"+q, "", http.StatusOK)
			if err == nil && bytes.Count(data, []byte(`"href":"`+base)) != items {
				err = fmt.Errorf("%s: not %d items: %.200s", q, items, data)
			}
			return err
		}
	}
	first := min(repeating, len(b.ids)/2) // the first cluster that reportOnce leaves alone
	report := func(ctx context.Context, id, body string) error {
		_, err := b.call(ctx, "PUT", base+"/"+id+"/statuses", body, http.StatusCreated)
		if err != nil && strings.Contains(err.Error(), "204 ") {
			err = nil // another connection's report of this cluster was of a later moment
		}
		return err
	}
	return []row{
		{name: "get", one: func(ctx context.Context, r *rand.Rand) error {
			_, err := b.call(ctx, "GET", base+"/"+some(r), "", http.StatusOK)
			return err
		}},
		{name: "list-first-page", one: list(fmt.Sprintf("page=1&size=%d", page), page)},
		{name: "list-page-50", one: list(fmt.Sprintf("page=50&size=%d", page), page)},
		{name: "search-label", one: list("size=100&search="+neturl.QueryEscape("labels.group='GROUP'"), alike)},
		{name: "put-status-identical", prepare: b.reportOnce, one: func(ctx context.Context, r *rand.Rand) error {
			i := r.IntN(len(b.again))
			_, err := b.call(ctx, "PUT", base+"/"+b.ids[i]+"/statuses", b.again[i], http.StatusCreated)
			return err
		}},
		{name: "put-status-same", one: func(ctx context.Context, r *rand.Rand) error {
			// The report with which the cluster was filled, of a later moment.
			i := first + r.IntN(len(b.ids)-first)
			return report(ctx, b.ids[i], statusReport(b.adapters[r.IntN(len(b.adapters))], 1, status.True, time.Now(),
				"filled"))
		}},
		{name: "put-status-changing", one: func(ctx context.Context, r *rand.Rand) error {
			i := first + r.IntN(len(b.ids)-first)
			note := fmt.Sprint(r.Uint32())
			return report(
				ctx,
				b.ids[i],
				statusReport(b.adapters[r.IntN(len(b.adapters))], 1, []status.Value{status.False, status.True}[r.IntN(2)],
					time.Now(), note),
			)
		}},
		{name: "patch-1k", one: func(ctx context.Context, r *rand.Rand) error {
			_, err := b.call(ctx, "PATCH", base+"/"+some(r), `{"spec":`+spec(r, 1024)+`}`, http.StatusOK)
			return err
		}},
		{name: "post-1k", one: post(1024)},
		{name: "post-16k", one: post(16 << 10)},
	}
}

// reportOnce sends the reports that the rows repeat.
func (b *bench) reportOnce(ctx context.Context) error {
	b.again = make([]string, min(repeating, len(b.ids)/2))
	at := time.Now()
	return bed.Many(len(b.again), *connections, func(i int) error {
		b.again[i] = statusReport(b.adapters[0], 1, status.True, at, "again")
		_, err := b.call(ctx, "PUT", base+"/"+b.ids[i]+"/statuses", b.again[i], http.StatusCreated)
		return err
	})
}

// result is the outcome of a measurement.
type result struct {
	name             string
	took             []time.Duration // sorted
	elapsed          time.Duration
	server, postgres time.Duration // processor time
	resident         float64       // MB, at its end
	wal              int64         // bytes of PostgreSQL's log, images of pages included; 0: not measured
	yardstick        time.Duration // 0: not measured
}

// yardsticks is the processor time of one request in yardsticks.
func (r result) yardsticks() float64 {
	if r.yardstick == 0 {
		return 0
	}
	return (r.server + r.postgres).Seconds() / float64(len(r.took)) / r.yardstick.Seconds()
}

func (r result) rate() float64 { return float64(len(r.took)) / r.elapsed.Seconds() }

func (r result) percentile(q float64) float64 {
	return float64(r.took[min(len(r.took)-1, int(q*float64(len(r.took))))].Microseconds()) / 1000
}

// perRequest is a part of the time for each request, in milliseconds.
func (r result) perRequest(d time.Duration) float64 {
	return float64(d.Microseconds()) / 1000 / float64(len(r.took))
}

func (r result) figures() map[string]any {
	return map[string]any{
		"requests": len(r.took), "requests_per_second": r.rate(), "p50_ms": r.percentile(.5), "p99_ms": r.percentile(
			.99),
		"cpu_ms_per_request": r.perRequest(r.server + r.postgres), "cpu_server_ms": r.perRequest(r.server),
		"cpu_postgres_ms":       r.perRequest(r.postgres),
		"wal_bytes_per_request": r.wal / int64(len(r.took)),
		"server_resident_mb":    r.resident, "yardstick_ms": r.yardstick.Seconds() * 1000, "yardsticks": r.yardsticks(),
	}
}

// measure makes requests on all connections, for a quarter of the time first to get warm.
func (b *bench) measure(ctx context.Context, row row) (result, error) {
	if row.prepare != nil {
		if err := row.prepare(ctx); err != nil {
			return result{}, err
		}
	}
	if _, _, _, err := b.load(ctx, row, *duration/4); err != nil {
		return result{}, err
	}
	before, err := b.walPosition(ctx)
	if err != nil {
		return result{}, err
	}
	took, elapsed, used, err := b.load(ctx, row, *duration)
	if err != nil {
		return result{}, err
	}
	after, err := b.walPosition(ctx)
	slices.Sort(took)
	return result{name: row.name, took: took, elapsed: elapsed, server: used[0], postgres: used[1],
		resident: b.target.resident(), wal: after - before}, err
}

// walPosition is how many bytes of log the server that this program started has written; 0 for another server.
func (b *bench) walPosition(ctx context.Context) (n int64, err error) {
	if b.target.dsn == "" {
		return 0, nil
	}
	conn, err := pgx.Connect(ctx, b.target.dsn)
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, "select (pg_current_wal_insert_lsn() - '0/0')::bigint").Scan(&n)
	return n, err
}

func (b *bench) load(ctx context.Context, row row, d time.Duration) (took []time.Duration, elapsed time.Duration,
	used [2]time.Duration, err error) {
	server, postgres, err := b.target.cpu()
	if err != nil {
		return nil, 0, used, err
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	start := time.Now()
	for worker := range *connections {
		group.Go(func() {
			r := rand.New(rand.NewPCG(*seed, uint64(b.next.Load())<<8|uint64(worker)))
			var mine []time.Duration
			var failed error
			for failed == nil && time.Since(start) < d {
				begin := time.Now()
				failed = row.one(ctx, r)
				mine = append(mine, time.Since(begin))
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
			if failed != nil && err == nil {
				err = failed
			}
		})
	}
	group.Wait()
	elapsed = time.Since(start)
	if err != nil {
		return nil, 0, used, err
	}
	s, p, err := b.target.cpu()
	return took, elapsed, [2]time.Duration{s - server, p - postgres}, err
}
