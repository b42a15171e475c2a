package router

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// outcome is how a connection ended.
type outcome string

const (
	outcomeRouted      outcome = "routed"
	outcomeGarbage     outcome = "garbage"     // no TLS ClientHello
	outcomeNoName      outcome = "no_name"     // a ClientHello without a server name
	outcomeUnknown     outcome = "unknown"     // a name without a route
	outcomeSlow        outcome = "slow"        // no name in time
	outcomeHungUp      outcome = "hung_up"     // the client closed the connection before it named a server
	outcomeCrowded     outcome = "crowded"     // too many connections that have named no server
	outcomeLimited     outcome = "limited"     // too many connections to one server name
	outcomeSource      outcome = "source"      // too many connections, or too many new ones, of one client address
	outcomeFull        outcome = "full"        // too many connections to all server names
	outcomeNoHeader    outcome = "no_header"   // a load balancer's connection without a PROXY header
	outcomeWakeBudget  outcome = "wake_budget" // the plane sleeps, and a budget of wakes is used up
	outcomeNotWoken    outcome = "not_woken"   // the plane could not be woken
	outcomeUnreachable outcome = "unreachable" // the plane does not take connections
	outcomeStopped     outcome = "stopped"     // the router stops
)

var outcomes = []outcome{outcomeRouted, outcomeGarbage, outcomeNoName, outcomeUnknown, outcomeSlow, outcomeHungUp,
	outcomeCrowded, outcomeLimited, outcomeSource, outcomeFull, outcomeNoHeader, outcomeWakeBudget,
	outcomeNotWoken, outcomeUnreachable, outcomeStopped}

// direction is the direction of bytes through the router.
type direction string

const (
	toPlane  direction = "to_plane"
	toClient direction = "to_client"
)

// metrics are the metrics of the router. No label has server names, whose number has no bound.
type metrics struct {
	open        prometheus.Gauge
	connections *prometheus.CounterVec
	bytes       *prometheus.CounterVec
	wakes       *prometheus.CounterVec
	wakeTime    prometheus.Histogram
	routes      prometheus.Gauge
	following   prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		open: prometheus.NewGauge(prometheus.GaugeOpts{Name: "atoll_router_connections_open",
			Help: "Connections that are carried to a plane now."}),
		connections: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "atoll_router_connections_total",
			Help: "Connections that ended, by outcome."}, []string{"outcome"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "atoll_router_bytes_total",
			Help: "Bytes carried, by direction."}, []string{"direction"}),
		wakes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "atoll_router_wakes_total",
			Help: "Planes that were asked to wake, by result."}, []string{"result"}),
		wakeTime: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "atoll_router_wake_seconds",
			Help:    "Time until a plane that was asked to wake served.",
			Buckets: []float64{.1, .25, .5, 1, 1.5, 2, 2.5, 3, 4, 5, 10, 30}}),
		routes: prometheus.NewGauge(prometheus.GaugeOpts{Name: "atoll_router_routes",
			Help: "Server names that have a route."}),
		following: prometheus.NewGauge(prometheus.GaugeOpts{Name: "atoll_router_following",
			Help: "1 while the router follows hosting's routes."}),
	}
	for _, o := range outcomes {
		m.connections.WithLabelValues(string(o))
	}
	for _, d := range []direction{toPlane, toClient} {
		m.bytes.WithLabelValues(string(d))
	}
	if reg != nil {
		reg.MustRegister(m.open, m.connections, m.bytes, m.wakes, m.wakeTime, m.routes, m.following)
	}
	return m
}

// countConnection counts a connection that has ended.
func (m *metrics) countConnection(o outcome) { m.connections.WithLabelValues(string(o)).Inc() }

func (m *metrics) countBytes(way direction, n int64) {
	m.bytes.WithLabelValues(string(way)).Add(float64(n))
}

// observeWake counts a request to wake a plane, and the time that a successful one took.
func (m *metrics) observeWake(took time.Duration, err error) {
	if err != nil {
		m.wakes.WithLabelValues("failed").Inc()
		return
	}
	m.wakes.WithLabelValues("woken").Inc()
	m.wakeTime.Observe(took.Seconds())
}
