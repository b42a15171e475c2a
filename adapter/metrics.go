package adapter

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are an adapter's metrics, with hyperfleet-adapter's names. Use NewMetrics.
type Metrics struct {
	up        prometheus.Gauge
	events    *prometheus.CounterVec
	duration  prometheus.Histogram
	errors    *prometheus.CounterVec
	deleted   *prometheus.CounterVec
	deletion  *prometheus.HistogramVec
	deletions *prometheus.GaugeVec
}

// NewMetrics registers the metrics. Several adapters may share a registry: the label component is
// the adapter's name.
func NewMetrics(r prometheus.Registerer, name, version string) *Metrics {
	r = prometheus.WrapRegistererWith(prometheus.Labels{"component": name, "version": version}, r)
	m := &Metrics{
		up: prometheus.NewGauge(prometheus.GaugeOpts{Name: "hyperfleet_adapter_up",
			Help: "1 while the adapter works"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "hyperfleet_adapter_events_processed_total",
			Help: "runs of the task by how they ended"}, []string{"status"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "hyperfleet_adapter_event_processing_duration_seconds",
			Help:    "duration of a run",
			Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 14),
		}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "hyperfleet_adapter_errors_total",
			Help: "failures by where they happened"}, []string{"error_type"}),
		deleted: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "hyperfleet_adapter_resources_deleted_total",
			Help: "deletions of objects by how they ended"}, []string{"kind", "status"}),
		deletion: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "hyperfleet_adapter_resource_deletion_duration_seconds",
			Help:    "duration of a deletion",
			Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 14),
		}, []string{"kind"}),
		deletions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "hyperfleet_adapter_resource_deletions_in_progress", Help: "deletions under way",
		}, []string{"kind"}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "hyperfleet_adapter_build_info",
		Help: "1, with the version as a label"})
	info.Set(1)
	for _, s := range []Status{Success, Failed, Skip} {
		m.events.WithLabelValues(string(s))
	}
	r.MustRegister(m.up, info, m.events, m.duration, m.errors, m.deleted, m.deletion, m.deletions)
	return m
}

func (m *Metrics) countRun(s Status, took time.Duration) {
	m.events.WithLabelValues(string(s)).Inc()
	m.duration.Observe(took.Seconds())
}

func (m *Metrics) countError(what string) { m.errors.WithLabelValues(what).Inc() }

// Observer returns callbacks that count an engine's deletions.
func (m *Metrics) Observer() Observer {
	return Observer{
		Deleting: func(kind string) { m.deletions.WithLabelValues(kind).Inc() },
		Deleted: func(kind string, err error, took time.Duration) {
			status := "success"
			if err != nil {
				status = "failed"
			}
			m.deletions.WithLabelValues(kind).Dec()
			m.deleted.WithLabelValues(kind, status).Inc()
			m.deletion.WithLabelValues(kind).Observe(took.Seconds())
		},
	}
}
