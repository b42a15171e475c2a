package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/api/work"
)

// metrics count what the agent does. Labels are bounded: never an id.
type metrics struct {
	events *prometheus.CounterVec
	calls  *prometheus.HistogramVec
	works  prometheus.Gauge
	unsent prometheus.Gauge
	watch  prometheus.Gauge

	repairs   prometheus.Counter
	contested prometheus.Gauge
	repaired  int // how much of the core's count is in repairs
}

// newMetrics registers with reg, if there is one.
func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "atoll_agent_events_total", Help: "CloudEvents, by direction, type and result.",
		}, []string{"direction", "type", "result"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "atoll_agent_kube_call_seconds", Help: "Calls to the management cluster's API server, by what they " +
				"do and result.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30},
		}, []string{"call", "result"}),
		works: prometheus.NewGauge(prometheus.GaugeOpts{Name: "atoll_agent_works",
			Help: "Works that the agent holds."}),
		unsent: prometheus.NewGauge(prometheus.GaugeOpts{Name: "atoll_agent_unsent_statuses",
			Help: "Statuses that the broker has not taken."}),
		watch: prometheus.NewGauge(prometheus.GaugeOpts{Name: "atoll_agent_watched_kinds",
			Help: "Kinds that are watched."}),
		repairs: prometheus.NewCounter(prometheus.CounterOpts{Name: "atoll_agent_repairs_total",
			Help: "Repairs of objects that others changed or deleted."}),
		contested: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "atoll_agent_contested_objects", Help: "Objects that another writer keeps changing back.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.events, m.calls, m.works, m.unsent, m.watch, m.repairs, m.contested)
	}
	return m
}

func (m *metrics) received(kind string, err error) {
	switch kind { // a sender may not invent label values
	case work.SpecCreate, work.SpecUpdate, work.SpecDelete, work.SpecResyncResponse, work.StatusResync,
		work.ServerDigest, work.ServerSpecs:
	default:
		kind = "other"
	}
	m.events.WithLabelValues("in", kind, result(err)).Inc()
}

func (m *metrics) sent(kind string, err error) {
	m.events.WithLabelValues("out", kind, result(err)).Inc()
}

func result(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}

func (m *metrics) timed(e effect, call func() event) event {
	start := time.Now()
	ev := call()
	name, failed := "", false
	switch e.(type) {
	case effApply:
		name = "apply"
		failed = ev.(evApplied).err != nil
	case effRemove:
		name = "remove"
		failed = ev.(evRemoved).err != nil
	case effDiscover:
		name = "discover"
		failed = ev.(evMapped).err != nil
	default:
		name = "record"
		failed = ev.(evAMWDone).err != nil
	}
	res := "ok"
	if failed {
		res = "error"
	}
	m.calls.WithLabelValues(name, res).Observe(time.Since(start).Seconds())
	return ev
}

func (m *metrics) observe(c *core) {
	m.works.Set(float64(len(c.works)))
	m.unsent.Set(float64(len(c.out.pending)))
	m.watch.Set(float64(len(c.watches)))
	m.repairs.Add(float64(c.repairsOrdered - m.repaired))
	m.repaired = c.repairsOrdered
	m.contested.Set(float64(len(c.contestedUntil)))
}
