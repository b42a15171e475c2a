package sentinel

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of HyperFleet's sentinel, with its names and labels, and three of Atoll's own.
// A poll is one batch of rounds of the feed.
type metrics struct {
	pending      *prometheus.GaugeVec
	published    *prometheus.CounterVec
	skipped      *prometheus.CounterVec
	polls        *prometheus.HistogramVec
	apiErrors    *prometheus.CounterVec
	brokerErrors *prometheus.CounterVec
	lastPoll     *prometheus.GaugeVec

	resources *prometheus.GaugeVec
	held      prometheus.Gauge
	delay     *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer, version string) *metrics {
	const namespace = "hyperfleet_sentinel"
	constant := prometheus.Labels{"component": "sentinel", "version": version}
	labels := func(more ...string) []string { return append([]string{"resource_type", "resource_selector"}, more...) }
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help,
			ConstLabels: constant}, labels())
	}
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help,
			ConstLabels: constant}, labels(label))
	}
	m := &metrics{
		pending:      gauge("pending_resources", "Resources that need an event."),
		published:    counter("events_published_total", "Events that the broker acknowledged.", "reason"),
		skipped:      counter("resources_skipped_total", "Decisions against an event.", "reason"),
		apiErrors:    counter("api_errors_total", "Failed reads of resources.", "error_type"),
		brokerErrors: counter("broker_errors_total", "Events that the broker did not acknowledge.", "error_type"),
		lastPoll: gauge(
			"last_successful_poll_timestamp_seconds",
			"When the sentinel last knew that its copy of the feed is current.",
		),
		polls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace:   namespace,
			Name:        "poll_duration_seconds",
			ConstLabels: constant,
			Help:        "Time that the sentinel needed for one batch of rounds of the feed.",
			Buckets:     prometheus.ExponentialBuckets(0.0001, 4, 8),
		}, labels()),
		resources: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "atoll_sentinel_resources",
			Help: "Resources of this replica's slots."}, labels()),
		held: prometheus.NewGauge(prometheus.GaugeOpts{Name: "atoll_sentinel_slots",
			Help: "Slots that this replica holds, of 64."}),
		delay: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "atoll_sentinel_event_delay_seconds",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
			Help:    "Time from a change to the acknowledgement of its event, for changes that were decided on at once.",
		}, labels()),
	}
	if r != nil {
		r.MustRegister(m.pending, m.published, m.skipped, m.polls, m.apiErrors, m.brokerErrors, m.lastPoll, m.resources,
			m.held, m.delay)
	}
	return m
}

// selectorLabel returns the value of the label resource_selector for a selector.
func selectorLabel(all []Label) string {
	if len(all) == 0 {
		return "all"
	}
	parts := make([]string, len(all))
	for i, l := range all {
		parts[i] = l.Label + ":" + l.Value
	}
	return strings.Join(parts, ",")
}

// watchedKind is a kind of resources for which the sentinel sends events, with its rules.
type watchedKind struct {
	kind       Kind
	topic      string // of the kind's events on the bus
	helloTopic string // the topic of its configuration
	rules      *Rules

	labels []string
}

// countPublished counts an event. delay is the time from the change to the acknowledgement, 0 if no change caused it.
func (m *metrics) countPublished(d *watchedKind, reason string, delay time.Duration) {
	m.published.WithLabelValues(d.labels[0], d.labels[1], reason).Inc()
	if delay > 0 {
		m.delay.WithLabelValues(d.labels...).Observe(delay.Seconds())
	}
}

// countSkipped counts a decision without an event.
func (m *metrics) countSkipped(d *watchedKind, reason string) {
	m.skipped.WithLabelValues(d.labels[0], d.labels[1], reason).Inc()
}
