package maestro

import (
	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/maestro/dispatch"
	"atoll.dev/maestro/rpcapi"
	"atoll.dev/store"
)

// metrics have the original's names where they mean the same; package bus adds
// those of the broker connection. None is labelled by an id or a name.
type metrics struct {
	streamed        prometheus.Counter // grpc_server_message_sent_total
	dropped         *prometheus.CounterVec
	resources       *prometheus.CounterVec // resource_processed_total
	grpcCalled      *prometheus.CounterVec // grpc_server_called_total
	grpcReceived    *prometheus.CounterVec // grpc_server_message_received_total
	grpcProcessed   *prometheus.CounterVec // grpc_server_processed_total
	grpcDuration    prometheus.Histogram   // grpc_server_processed_duration_seconds
	resync          prometheus.Histogram   // resources_spec_resync_duration_seconds
	republished     prometheus.Counter
	batch           prometheus.Histogram
	watchers        prometheus.Gauge
	streams         prometheus.Gauge
	pending         prometheus.Gauge
	ahead           prometheus.Gauge
	unknown         prometheus.Gauge
	delivering      prometheus.Gauge
	deadServers     prometheus.Counter
	deliveryLatency prometheus.Histogram
	sealedAgain     *prometheus.CounterVec
	otherKeys       prometheus.Gauge
	inClear         prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	seconds := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	m := &metrics{
		streamed: prometheus.NewCounter(prometheus.CounterOpts{Name: "grpc_server_message_sent_total",
			Help: "Events sent to sources and agents on streams, heartbeats not counted."}),
		dropped: counter("maestro_events_dropped_total", "Events of agents that were dropped, by reason.",
			"reason"),
		resources: counter("resource_processed_total",
			"Changes of resource bundles asked for, by action and outcome.", "action", "outcome"),
		grpcCalled:    counter("grpc_server_called_total", "gRPC calls, by method.", "type"),
		grpcReceived:  counter("grpc_server_message_received_total", "Events published over gRPC, by type.", "type"),
		grpcProcessed: counter("grpc_server_processed_total", "Publish calls, by type and code.", "type", "code"),
		grpcDuration:  histogram("grpc_server_processed_duration_seconds", "Time of Publish calls.", seconds),
		resync: histogram("resources_spec_resync_duration_seconds", "Time to compare what an agent holds.",
			seconds),
		republished: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spec_controller_undelivered_resources_republished_total", Help: "Works sent again because they " +
				"were not acknowledged."}),
		batch: histogram("maestro_status_batch_size", "Status events in one transaction.",
			[]float64{1, 2, 5, 10, 20, 50, 100, 200}),
		watchers: gauge("maestro_watchers", "Open REST watches."),
		streams:  gauge("maestro_grpc_streams", "Open gRPC subscriptions."),
		pending: gauge("maestro_pending_works",
			"Works not acknowledged by their agents, as this server knows."),
		ahead:   gauge("maestro_unacknowledged_works", "Those of them that were sent."),
		unknown: gauge("maestro_unknown_works", "Works that agents hold and no source has."),
		deadServers: prometheus.NewCounter(prometheus.CounterOpts{Name: "maestro_servers_gone_total",
			Help: "Other servers that this one found gone, and asked all agents because of."}),
		delivering: gauge("maestro_delivery_slots",
			"Of 64 slots of consumers, those that this server delivers to."),
		deliveryLatency: histogram("maestro_accept_to_send_seconds",
			"Time from a change's commit to its first publish.", seconds),
	}
	m.sealedAgain = counter("maestro_envelope_sealed_total",
		"Works whose Secrets the background has sealed: they were in clear, or sealed with another key.", "from")
	m.otherKeys = gauge("maestro_envelope_other_keys",
		"Works whose Secrets are sealed with another key than the first of the key file.")
	m.inClear = gauge("maestro_envelope_unchecked",
		"1 until the background has looked for Secrets in clear in all works, then 0.")
	if reg != nil {
		reg.MustRegister(m.streamed, m.dropped, m.resources, m.grpcCalled, m.grpcReceived, m.grpcProcessed,
			m.grpcDuration, m.resync, m.republished,
			m.batch, m.watchers, m.streams, m.pending, m.ahead, m.unknown, m.delivering, m.deadServers, m.deliveryLatency,
			m.sealedAgain, m.otherKeys, m.inClear)
	}
	return m
}

// sealing returns an observer that counts the values that the store seals in the background.
func (m *metrics) sealing() func(store.SealingProgress) {
	m.inClear.Set(1)
	var before store.SealingProgress
	return func(p store.SealingProgress) {
		m.sealedAgain.WithLabelValues("key").Add(float64(p.Resealed - before.Resealed))
		m.sealedAgain.WithLabelValues("clear").Add(float64(p.Sealed - before.Sealed))
		m.otherKeys.Set(float64(p.OtherKeys))
		if p.IsChecked {
			m.inClear.Set(0)
		}
		before = p
	}
}

// dispatch returns the collectors that the delivery of works changes.
func (m *metrics) dispatch() dispatch.Metrics {
	return dispatch.Metrics{Pending: m.pending, Ahead: m.ahead, Slots: m.delivering, Republished: m.republished,
		Latency: m.deliveryLatency}
}

// rpc returns the collectors that the gRPC ports change.
func (m *metrics) rpc() rpcapi.Metrics {
	return rpcapi.Metrics{Called: m.grpcCalled, Received: m.grpcReceived, Processed: m.grpcProcessed,
		Duration: m.grpcDuration, Sent: m.streamed, Streams: m.streams}
}

// processed counts a change of a bundle.
func (m *metrics) processed(action string, err error) {
	outcome := "success"
	if err != nil {
		outcome = "error"
	}
	m.resources.WithLabelValues(action, outcome).Inc()
}
