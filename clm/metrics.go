package clm

import (
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/clm/status"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// metrics are hyperfleet-api's metrics of requests, under its names. A nil *metrics counts nothing.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	started  *prometheus.CounterVec
	paths    sync.Map // route -> path
}

// requestBuckets are the bounds of durations in seconds: the original's, and three finer ones.
var requestBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// newMetrics registers the metrics; reg may be nil.
func newMetrics(reg prometheus.Registerer, version string, registry *Registry, p *pending) *metrics {
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
	wrapped.MustRegister(info, m.requests, m.duration, m.started, p)
	return m
}

// resourceType returns a kind as metrics name it: cluster, nodepool.
func resourceType(kind string) string { return strings.ToLower(kind) }

// observe counts a request.
func (m *metrics) observe(a rest.Answered) {
	if m == nil {
		return
	}
	path, ok := m.paths.Load(a.Route)
	if !ok {
		path, _ = m.paths.LoadOrStore(a.Route, pathOf(a.Route))
	}
	method := a.Method
	if a.Route == "" {
		method = "other" // a client may send any word
	}
	text := strconv.Itoa(a.Status)
	m.requests.WithLabelValues(method, path.(string), text).Inc()
	if !a.IsWatch {
		m.duration.WithLabelValues(method, path.(string), text).Observe(a.Took.Seconds())
	}
}

// pathOf returns a route's path, with - for each identifier. All requests without a route
// have one path.
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
	seen, err := observedOf(d)
	if err != nil {
		return
	}
	for _, c := range seen.Conditions {
		if c.Type == status.Reconciled && c.Status == status.False && !c.LastTransitionTime.Before(begun) {
			m.started.WithLabelValues(resourceType(string(d.Kind)), strconv.FormatBool(d.DeletedAt != nil)).Inc()
		}
	}
}

// unreconciledTree counts all resources of a tree that a write since begun made unreconciled.
func (m *metrics) unreconciledTree(f *tree, begun time.Time) {
	if m == nil || f == nil {
		return
	}
	m.unreconciled(f.doc, begun)
	for _, child := range f.children {
		m.unreconciledTree(child, begun)
	}
}
