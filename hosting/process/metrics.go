package process

import "github.com/prometheus/client_golang/prometheus"

// metrics count starts and failures of planes. Labels are bounded: no plane's
// name is one.
type metrics struct {
	starts      prometheus.Histogram
	failures    *prometheus.CounterVec
	firstStarts *prometheus.CounterVec
}

// Outcomes of the first start of a cluster's plane while there is a pool of warm planes.
const (
	startGiven  = "given"  // the cluster got a warm plane
	startMissed = "missed" // no warm plane was ready, or the disk had something of the cluster
	startUnfit  = "unfit"  // the cluster's owner has chosen something that warm planes are not started with
)

// newMetrics registers the metrics with reg, if there is one. warm counts the planes of the pool.
func newMetrics(reg prometheus.Registerer, warm func() (ready, starting int)) *metrics {
	m := &metrics{
		starts: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "atoll_hosting_plane_start_seconds", Help: "From a plane's start until it is ready.",
			Buckets: []float64{.25, .5, .75, 1, 1.5, 2, 3, 5, 10, 30, 120},
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "atoll_hosting_plane_failures_total", Help: "Unordered ends of planes, and failed starts, by reason.",
		}, []string{"reason"}),
		firstStarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "atoll_hosting_warm_first_starts_total",
			Help: "First starts of clusters while there is a pool of warm planes: given one, missed, or unfit for it.",
		}, []string{"outcome"}),
	}
	for _, outcome := range []string{startGiven, startMissed, startUnfit} {
		m.firstStarts.WithLabelValues(outcome)
	}
	if reg != nil {
		reg.MustRegister(m.starts, m.failures, m.firstStarts, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "atoll_hosting_warm_planes", Help: "Ready planes that belong to no cluster yet.",
		}, func() float64 { ready, _ := warm(); return float64(ready) }), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "atoll_hosting_warm_planes_starting", Help: "Planes of the pool that are not ready yet.",
		}, func() float64 { _, starting := warm(); return float64(starting) }))
	}
	return m
}
