package hosting

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
)

// metrics count what hosting does; the runtime has its own. Labels are bounded: no
// object's name is one.
type metrics struct {
	reconciles *prometheus.HistogramVec
	orphans    prometheus.Gauge
}

// planeGauge counts planes by state when metrics are collected.
type planeGauge struct {
	desc  *prometheus.Desc
	count func() map[controlplane.State]int
}

func (g planeGauge) Describe(c chan<- *prometheus.Desc) { c <- g.desc }

func (g planeGauge) Collect(c chan<- prometheus.Metric) {
	for state, n := range g.count() {
		c <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(n), string(state))
	}
}

// newMetrics registers the metrics with reg, if there is one. count counts planes by state, full those whose etcd is
// full.
func newMetrics(reg prometheus.Registerer, count func() map[controlplane.State]int, full func() float64) *metrics {
	m := &metrics{
		reconciles: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "atoll_hosting_reconcile_seconds", Help: "Reconciliations, by resource and result.",
			Buckets: []float64{.0001, .001, .01, .1, 1, 10},
		}, []string{"resource", "result"}),
		orphans: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "atoll_hosting_orphans", Help: "Planes that had no HostedCluster when hosting started.",
		}),
	}
	if reg != nil {
		planes := prometheus.NewDesc("atoll_hosting_planes", "Planes, by state.", []string{"state"}, nil)
		reg.MustRegister(m.reconciles, m.orphans, planeGauge{planes, count},
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "atoll_hosting_etcd_full", Help: "Planes whose etcd is full and refuses writes.",
			}, full))
	}
	return m
}

// reconciled returns a loop's observer.
func (m *metrics) reconciled(resource string) func(loop.Key, time.Duration, error) {
	return func(_ loop.Key, took time.Duration, err error) {
		result := "ok"
		if err != nil {
			result = "error"
		}
		m.reconciles.WithLabelValues(resource, result).Observe(took.Seconds())
	}
}
