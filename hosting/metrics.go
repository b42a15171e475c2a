package hosting

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/hosting/loop"
)

// metrics count what hosting does. Labels are bounded: never a name.
type metrics struct {
	reconciles *prometheus.HistogramVec
	starts     prometheus.Histogram
	failures   *prometheus.CounterVec
	orphans    prometheus.Gauge
}

// planeGauge counts planes by state when it is asked.
type planeGauge struct {
	desc  *prometheus.Desc
	count func() map[state]int
}

func (g planeGauge) Describe(c chan<- *prometheus.Desc) { c <- g.desc }

func (g planeGauge) Collect(c chan<- prometheus.Metric) {
	for s, n := range g.count() {
		c <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(n), string(s))
	}
}

// newMetrics registers with reg, if there is one.
func newMetrics(reg prometheus.Registerer, count func() map[state]int) *metrics {
	m := &metrics{
		reconciles: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "atoll_hosting_reconcile_seconds", Help: "Reconciliations, by resource and result.",
			Buckets: []float64{.0001, .001, .01, .1, 1, 10},
		}, []string{"resource", "result"}),
		starts: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "atoll_hosting_plane_start_seconds", Help: "From a plane's start until it is ready.",
			Buckets: []float64{.25, .5, .75, 1, 1.5, 2, 3, 5, 10, 30, 120},
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "atoll_hosting_plane_failures_total", Help: "Ends of planes that nobody wished, and starts that " +
				"failed, by reason.",
		}, []string{"reason"}),
		orphans: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "atoll_hosting_orphans", Help: "Planes that had no HostedCluster when hosting started.",
		}),
	}
	if reg != nil {
		planes := prometheus.NewDesc("atoll_hosting_planes", "Planes, by state.", []string{"state"}, nil)
		reg.MustRegister(m.reconciles, m.starts, m.failures, m.orphans, planeGauge{planes, count})
	}
	return m
}

func (m *metrics) reconciled(resource string) func(loop.Key, time.Duration, error) {
	return func(_ loop.Key, took time.Duration, err error) {
		result := "ok"
		if err != nil {
			result = "error"
		}
		m.reconciles.WithLabelValues(resource, result).Observe(took.Seconds())
	}
}

// changed counts a plane's failures.
func (m *metrics) changed(v view) {
	if v.State == failing && v.Failure != nil {
		m.failures.WithLabelValues(v.Failure.Reason).Inc()
	}
}
