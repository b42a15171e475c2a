package bus

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/api/work"
)

// clientMetrics have the names and labels of sdk-go's metrics, without the labels whose
// values are names: source, consumer, client_id. The clients of a pool share them.
type clientMetrics struct {
	sentTotal, receivedTotal *prometheus.CounterVec
	undecodable, connects    prometheus.Counter
	unacknowledged           prometheus.Counter
}

func newClientMetrics(reg prometheus.Registerer) *clientMetrics {
	kinds := []string{"type", "subresource", "action"}
	m := &clientMetrics{
		sentTotal: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cloudevents_sent_total",
			Help: "CloudEvents that the broker acknowledged."}, kinds),
		receivedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cloudevents_received_total",
			Help: "CloudEvents received from the broker."}, kinds),
		undecodable: prometheus.NewCounter(prometheus.CounterOpts{Name: "atoll_bus_undecodable_total",
			Help: "Messages that were no CloudEvents; acknowledged and dropped."}),
		connects: prometheus.NewCounter(prometheus.CounterOpts{Name: "atoll_bus_connects_total",
			Help: "Connections made to the broker."}),
		unacknowledged: prometheus.NewCounter(prometheus.CounterOpts{Name: "atoll_bus_unacknowledged_total",
			Help: "Events that the broker did not acknowledge in time."}),
	}
	if reg != nil {
		reg.MustRegister(m.sentTotal, m.receivedTotal, m.undecodable, m.connects, m.unacknowledged)
	}
	return m
}

func (m *clientMetrics) countSent(kind string) {
	m.sentTotal.WithLabelValues(kindLabels(kind)...).Inc()
}
func (m *clientMetrics) countReceived(kind string) {
	m.receivedTotal.WithLabelValues(kindLabels(kind)...).Inc()
}

var (
	subresources = []string{"spec", "status"}
	actions      = []string{"create_request", "update_request", "delete_request", "resync_request", "resync_response"}
)

// kindLabels splits a type <data type>.<subresource>.<action> into labels. Unknown types
// share one label, so that a sender cannot create values.
func kindLabels(kind string) []string {
	if rest, ok := strings.CutPrefix(kind, work.DataType+"."); ok {
		subresource, action, _ := strings.Cut(rest, ".")
		if slices.Contains(subresources, subresource) && slices.Contains(actions, action) {
			return []string{work.DataType, subresource, action}
		}
	}
	return []string{"other", "", ""}
}
