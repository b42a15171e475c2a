package rest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Ops serves the endpoints for operators and probes: /healthz (the process runs), /readyz
// (the readiness checks that do not hold) and /metrics. Use NewOps. Serve it on a loopback
// listener.
type Ops struct {
	// Registry holds the service's metrics; Go's and the process's are in it.
	Registry *prometheus.Registry

	// Body, when set, makes the bodies of /readyz. Without missing checks the service is ready.
	Body func(missing []Missing) any

	mu       sync.Mutex // for checks, and for adding to mux
	checks   map[string]func(context.Context) error
	mux      *Mux
	draining atomic.Bool
}

// checkTimeout bounds each readiness check: a check that takes longer does not hold.
const checkTimeout = 2 * time.Second

// NewOps returns an Ops without checks, which is ready.
func NewOps() *Ops {
	o := &Ops{Registry: prometheus.NewRegistry(), checks: map[string]func(context.Context) error{}, mux: NewMux()}
	o.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(
		collectors.ProcessCollectorOpts{}))
	o.mux.Handle("GET /healthz", o.Live)
	o.mux.Handle("GET /readyz", o.Ready)
	o.mux.HandleHTTP("GET /metrics", promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{Registry: o.Registry}))
	return o
}

// Check registers a readiness check. /readyz shows the text of its error to every client.
// Check panics if the name is taken.
func (o *Ops) Check(name string, check func(context.Context) error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, taken := o.checks[name]; taken {
		panic("rest: two readiness checks named " + name)
	}
	o.checks[name] = check
}

// Drain makes the service not ready. A service calls it before it stops.
func (o *Ops) Drain() { o.draining.Store(true) }

// Draining is the name of the check that does not hold after Drain.
const Draining = "draining"

// Missing is a readiness check that does not hold.
type Missing struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Missing runs all checks at the same time and returns those that do not hold, by name.
func (o *Ops) Missing(ctx context.Context) []Missing {
	if o.draining.Load() {
		return []Missing{{Name: Draining, Reason: "the service is stopping"}}
	}
	o.mu.Lock()
	checks := make(map[string]func(context.Context) error, len(o.checks))
	for name, check := range o.checks {
		checks[name] = check
	}
	o.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	answers := make(chan Missing, len(checks))
	for name, check := range checks {
		go func() {
			m := Missing{Name: name}
			if err := runCheck(ctx, check); err != nil {
				m.Reason = err.Error()
			}
			answers <- m
		}()
	}
	var missing []Missing
	pending := checks
	for len(pending) > 0 {
		select {
		case m := <-answers:
			delete(pending, m.Name)
			if m.Reason != "" {
				missing = append(missing, m)
			}
		case <-ctx.Done():
			for name := range pending {
				missing = append(missing, Missing{Name: name, Reason: fmt.Sprintf("no answer within %s", checkTimeout)})
			}
			pending = nil
		}
	}
	slices.SortFunc(missing, func(a, b Missing) int { return strings.Compare(a.Name, b.Name) })
	return missing
}

// runCheck runs a check and returns a panic as an error.
func runCheck(ctx context.Context, check func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the check panicked: %v", p)
		}
	}()
	return check(ctx)
}

type opsStatus struct {
	Status  string    `json:"status"`
	Missing []Missing `json:"missing,omitempty"`
}

// Handle adds a route of the service's own, such as "GET /config". It may be called
// while Handler serves already, because some parts start after the health port. Every
// client that reaches the port can read the route, so it must not show secrets.
func (o *Ops) Handle(pattern string, h Handler) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mux.Handle(pattern, h)
}

// Live answers that the process runs.
func (o *Ops) Live(w http.ResponseWriter, _ *http.Request) error {
	return WriteJSON(w, http.StatusOK, opsStatus{Status: "ok"})
}

// Ready answers 200, or 503 with the checks that do not hold.
func (o *Ops) Ready(w http.ResponseWriter, r *http.Request) error {
	missing := o.Missing(r.Context())
	status, body := http.StatusOK, opsStatus{Status: "ok"}
	if len(missing) > 0 {
		w.Header().Set("Retry-After", "1")
		status, body = http.StatusServiceUnavailable, opsStatus{Status: "unavailable", Missing: missing}
	}
	if o.Body != nil {
		return WriteJSON(w, status, o.Body(missing))
	}
	return WriteJSON(w, status, body)
}

// Handler serves /healthz, /readyz and /metrics, and the service's own routes.
func (o *Ops) Handler() http.Handler { return o.mux }
