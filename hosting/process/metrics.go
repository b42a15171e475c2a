package process

import "github.com/prometheus/client_golang/prometheus"

// metrics count starts and failures of planes. Labels are bounded: no plane's
// name is one.
type metrics struct {
	starts   prometheus.Histogram
	failures *prometheus.CounterVec
}

// newMetrics registers the metrics with reg, if there is one. warm counts the warm planes that a cluster can get.
func newMetrics(reg prometheus.Registerer, warm func() float64) *metrics {
	m := &metrics{
		starts: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "atoll_hosting_plane_start_seconds", Help: "From a plane's start until it is ready.",
			Buckets: []float64{.25, .5, .75, 1, 1.5, 2, 3, 5, 10, 30, 120},
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "atoll_hosting_plane_failures_total", Help: "Unordered ends of planes, and failed starts, by reason.",
		}, []string{"reason"}),
	}
	if reg != nil {
		reg.MustRegister(m.starts, m.failures, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "atoll_hosting_warm_planes", Help: "Ready planes that belong to no cluster yet.",
		}, warm))
	}
	return m
}
