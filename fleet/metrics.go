package fleet

import "github.com/prometheus/client_golang/prometheus"

// Outcomes of what is asked of fleet.
const (
	outcomePlaced   = "placed"
	outcomeKept     = "kept" // it was placed before
	outcomeWaiting  = "waiting"
	outcomeReleased = "released"
	outcomeOrphan   = "orphaned" // released, since its cluster is gone
)

type metrics struct {
	decisions *prometheus.CounterVec
	asked     prometheus.Counter
	mended    prometheus.Counter
	waiting   prometheus.Gauge
	capacity  *prometheus.GaugeVec
	reserved  *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "atoll_fleet_placements_total",
			Help: "Placements that were decided or ended, by outcome."}, []string{"outcome"}),
		asked: prometheus.NewCounter(prometheus.CounterOpts{Name: "atoll_fleet_asked_total",
			Help: "Waiting clusters for which work was asked again, since there may be room."}),
		mended: prometheus.NewCounter(prometheus.CounterOpts{Name: "atoll_fleet_mended_total",
			Help: "Sums of reservations that were not those of the placements. Each is a fault of the program."}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "atoll_fleet_waiting",
			Help: "Clusters that wait for room."}),
		capacity: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "atoll_fleet_capacity",
			Help: "What a management cluster has of a resource."}, []string{"management_cluster", "resource"}),
		reserved: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "atoll_fleet_reserved",
			Help: "What placements reserve of it."}, []string{"management_cluster", "resource"}),
	}
	if reg != nil {
		reg.MustRegister(m.decisions, m.asked, m.mended, m.waiting, m.capacity, m.reserved)
	}
	return m
}

func (m *metrics) decided(outcome string) { m.decisions.WithLabelValues(outcome).Inc() }
