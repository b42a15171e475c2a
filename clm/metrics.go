package clm

import (
	"context"
	"encoding/json"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/clm/status"
	"atoll.dev/store"
)

// metrics are hyperfleet-api's, under its names (reference 1.12). A nil
// *metrics counts nothing.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	started  *prometheus.CounterVec
	paths    sync.Map // route -> path
}

// requestBuckets are the original's, and three finer ones.
var requestBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// newMetrics registers them; reg may be nil.
func newMetrics(reg prometheus.Registerer, version string, registry *Registry, st *store.Store,
	stuck time.Duration) *metrics {
	if reg == nil {
		return nil
	}
	constant := prometheus.Labels{"component": "api", "version": version}
	wrapped := prometheus.WrapRegistererWith(constant, reg)
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "hyperfleet_api_build_info", Help: "1, with the build as labels.", ConstLabels: prometheus.Labels{
			"go_version": runtime.Version(), "commit": version},
	})
	info.Set(1)
	labels := []string{"method", "path", "code"}
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "hyperfleet_api_requests_total",
			Help: "Requests answered."}, labels),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hyperfleet_api_request_duration_seconds", Help: "Time from request to end of answer; watches not " +
				"counted.", Buckets: requestBuckets,
		}, labels),
		started: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hyperfleet_api_reconciliation_started_total", Help: "Resources whose condition Reconciled a " +
				"create, a change or a deletion made False.",
		}, []string{"resource_type", "is_delete"}),
	}
	for _, e := range registry.entities {
		if len(e.RequiredAdapters) > 0 {
			m.started.WithLabelValues(resourceType(e.Kind), "false")
			m.started.WithLabelValues(resourceType(e.Kind), "true")
		}
	}
	wrapped.MustRegister(info, m.requests, m.duration, m.started, &pending{store: st, registry: registry,
		threshold: stuck})
	return m
}

// resourceType is a kind as metrics name it: cluster, nodepool.
func resourceType(kind string) string { return strings.ToLower(kind) }

// observe counts a request.
func (m *metrics) observe(method, route string, code int, took time.Duration, watch bool) {
	if m == nil {
		return
	}
	path, ok := m.paths.Load(route)
	if !ok {
		path, _ = m.paths.LoadOrStore(route, pathOf(route))
	}
	if route == "" {
		method = "other" // whatever a stranger makes up
	}
	text := strconv.Itoa(code)
	m.requests.WithLabelValues(method, path.(string), text).Inc()
	if !watch {
		m.duration.WithLabelValues(method, path.(string), text).Observe(took.Seconds())
	}
}

// pathOf is a route's path, with - for each identifier. Requests that no route
// matched are one path.
func pathOf(route string) string {
	_, path, _ := strings.Cut(route, " ")
	if path == "" {
		return "-"
	}
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if strings.HasPrefix(p, "{") {
			parts[i] = "-"
		}
	}
	return strings.Join(parts, "/")
}

// unreconciled counts a resource that a write since begun made unreconciled.
func (m *metrics) unreconciled(d store.Document, begun time.Time) {
	if m == nil {
		return
	}
	var seen struct {
		Conditions []struct {
			Type, Status       string
			LastTransitionTime time.Time `json:"last_transition_time"`
		}
	}
	if json.Unmarshal(d.Status, &seen) != nil {
		return
	}
	for _, c := range seen.Conditions {
		if c.Type == status.Reconciled && c.Status == string(status.False) && !c.LastTransitionTime.Before(begun) {
			m.started.WithLabelValues(resourceType(string(d.Kind)), strconv.FormatBool(d.DeletedAt != nil)).Inc()
		}
	}
}

// family counts all members that were made unreconciled.
func (m *metrics) family(f *family, begun time.Time) {
	if m == nil || f == nil {
		return
	}
	m.unreconciled(f.doc, begun)
	for _, child := range f.children {
		m.family(child, begun)
	}
}

// pending asks the database, when somebody asks for metrics, what is
// unreconciled, and since when.
type pending struct {
	store     *store.Store
	registry  *Registry
	threshold time.Duration

	mu    sync.Mutex
	asked time.Time
	last  []pendingRow
}

type pendingRow struct {
	kind           string
	deleted        bool
	pending, stuck int64
	longest        float64 // seconds, of what is stuck
}

var (
	pendingLabels = []string{"resource_type", "is_delete"}
	pendingDesc   = prometheus.NewDesc("hyperfleet_api_resource_pending_reconciliation",
		"Resources that are unreconciled.", pendingLabels, nil)
	stuckDesc = prometheus.NewDesc("hyperfleet_api_resource_pending_reconciliation_stuck",
		"Resources that are unreconciled for longer than the threshold.", pendingLabels, nil)
	stuckForDesc = prometheus.NewDesc("hyperfleet_api_resource_pending_reconciliation_stuck_duration_seconds",
		"How long the longest of them is unreconciled.", pendingLabels, nil)

	openDesc  = prometheus.NewDesc("hyperfleet_db_connections_open", "Open connections to the database.", nil, nil)
	inUseDesc = prometheus.NewDesc("hyperfleet_db_connections_in_use", "Connections to the database in use.", nil, nil)
	idleDesc  = prometheus.NewDesc("hyperfleet_db_connections_idle", "Idle connections to the database.", nil, nil)
)

// Describe implements prometheus.Collector.
func (p *pending) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{pendingDesc, stuckDesc, stuckForDesc, openDesc, inUseDesc, idleDesc} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (p *pending) Collect(to chan<- prometheus.Metric) {
	open, inUse, idle := p.store.Connections()
	for desc, n := range map[*prometheus.Desc]int{openDesc: open, inUseDesc: inUse, idleDesc: idle} {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n))
	}
	for _, r := range p.rows() {
		labels := []string{resourceType(r.kind), strconv.FormatBool(r.deleted)}
		to <- prometheus.MustNewConstMetric(pendingDesc, prometheus.GaugeValue, float64(r.pending), labels...)
		to <- prometheus.MustNewConstMetric(stuckDesc, prometheus.GaugeValue, float64(r.stuck), labels...)
		to <- prometheus.MustNewConstMetric(stuckForDesc, prometheus.GaugeValue, r.longest, labels...)
	}
}

const (
	pendingFresh = 5 * time.Second // what is not older is told again
	pendingWait  = 2 * time.Second // a database that takes longer is not asked
)

// rows asks the database, unless it was asked just now; without an answer there
// are none, rather than old ones.
func (p *pending) rows() []pendingRow {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.asked) < pendingFresh {
		return p.last
	}
	ctx, cancel := context.WithTimeout(context.Background(), pendingWait)
	defer cancel()
	p.last = nil
	if rows, err := p.query(ctx); err == nil {
		p.last = rows
	}
	p.asked = time.Now()
	return p.last
}

func (p *pending) query(ctx context.Context) (rows []pendingRow, err error) {
	known := map[pendingRow]int{}
	var kinds []string
	for _, e := range p.registry.entities {
		if len(e.RequiredAdapters) == 0 {
			continue
		}
		kinds = append(kinds, e.Kind)
		for _, deleted := range []bool{false, true} {
			row := pendingRow{kind: e.Kind, deleted: deleted}
			known[row] = len(rows)
			rows = append(rows, row)
		}
	}
	if len(kinds) == 0 {
		return nil, nil
	}
	err = p.store.Read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		found, err := conn.Query(ctx, `
			select kind, deleted, count(*), count(*) filter (where since < now() - $2::interval),
				coalesce(extract(epoch from now() - min(since) filter (where since < now() - $2::interval)), 0)::float8
			from (
				select kind, deleted_at is not null as deleted, (jsonb_path_query_first(status,
					'$.conditions[*] ? (@.type == "Reconciled" && @.status == "False")') ->> 'last_transition_time')::timestamptz as since
				from document where kind = any($1) and removed_at is null
			) unreconciled
			where since is not null
			group by kind, deleted`, kinds, p.threshold)
		if err != nil {
			return err
		}
		defer found.Close()
		for found.Next() {
			var r pendingRow
			if err := found.Scan(&r.kind, &r.deleted, &r.pending, &r.stuck, &r.longest); err != nil {
				return err
			}
			rows[known[pendingRow{kind: r.kind, deleted: r.deleted}]] = r
		}
		return found.Err()
	})
	return rows, err
}
