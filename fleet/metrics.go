package fleet

import "github.com/prometheus/client_golang/prometheus"

// Outcomes of requests to place or release a cluster.
const (
	outcomePlaced   = "placed"
	outcomeKept     = "kept" // the cluster was placed before
	outcomeWaiting  = "waiting"
	outcomeReleased = "released"
	outcomeOrphan   = "orphaned" // released, because its cluster does not exist any more
)

type metrics struct {
	decisions *prometheus.CounterVec
	requested prometheus.Counter
	corrected prometheus.Counter
	recovered prometheus.Counter
	paused    prometheus.Gauge
	waiting   prometheus.Gauge
	capacity  *prometheus.GaugeVec
	reserved  *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "atoll_fleet_placements_total",
			Help: "Placements that were decided or ended, by outcome."}, []string{"outcome"}),
		requested: prometheus.NewCounter(prometheus.CounterOpts{Name: "atoll_fleet_asked_total",
			Help: "Waiting clusters for which fleet requested work because there may be room."}),
		corrected: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "atoll_fleet_mended_total",
			Help: "Sums of reservations that differed from the placements. Each is a fault of the program.",
		}),
		recovered: prometheus.NewCounter(prometheus.CounterOpts{Name: "atoll_fleet_recoveries_total",
			Help: "Recoveries of clusters that the policy for lost management clusters began."}),
		paused: prometheus.NewGauge(prometheus.GaugeOpts{Name: "atoll_fleet_recoveries_paused",
			Help: "1 while the policy for lost management clusters pauses: the region itself may be cut off."}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "atoll_fleet_waiting",
			Help: "Clusters that wait for room."}),
		capacity: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "atoll_fleet_capacity",
			Help: "Capacity of a management cluster, by resource."}, []string{"management_cluster", "resource"}),
		reserved: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "atoll_fleet_reserved",
			Help: "Amounts that placements reserve on a management cluster, by resource.",
		}, []string{"management_cluster", "resource"}),
	}
	if reg != nil {
		reg.MustRegister(m.decisions, m.requested, m.corrected, m.recovered, m.paused, m.waiting, m.capacity, m.reserved)
	}
	return m
}

func (m *metrics) countOutcome(outcome string) { m.decisions.WithLabelValues(outcome).Inc() }
