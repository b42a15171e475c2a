// Package hosting runs hosted control planes on a management cluster that has
// no HyperShift: it follows the HostedClusters there, runs a plane for each,
// one atoll-kube process, and says in the HostedCluster's status, in
// HyperShift's words, how the plane is.
//
// A plane is a process of its own that outlives hosting and is found again by
// the next one; its data lies in a directory of its own until the
// HostedCluster is finalized. What is decided (valid? which release? asleep?
// which conditions?) are pure functions; a runner for each plane owns its
// process.
//
// The packages below are other parts of the same service: loop, nodepool,
// credential, router. Nobody but cli imports them.
package hosting

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/loop"
	"atoll.dev/hosting/router"
	"atoll.dev/plane"
)

// Options describe a hosting.
type Options struct {
	Client    dynamic.Interface // of the management cluster, as hosting
	DataDir   string            // of the planes
	Advertise string            // HOST:PORT where customers reach all planes: the router's
	Catalogue Catalogue
	Idle      time.Duration // without a connection, before a plane that may sleep does; default 10 min
	Routes    Routes        // default: there is no router

	FirstPort, LastPort int // of the planes, on loopback; default 30000 to 32767

	Starts int // of planes at once; default two for each processor

	Log     *slog.Logger          // default: none
	Metrics prometheus.Registerer // default: none

	pace pace // default: usualPace
}

// Routes is hosting's side of the router, as router.Control is.
type Routes interface {
	Set([]router.Route)
	Activity(serverName string) (open int, last time.Time)
	Settled() bool
	OnIdle(func(serverName string))
}

type noRoutes struct{}

func (noRoutes) Set([]router.Route)               {}
func (noRoutes) Activity(string) (int, time.Time) { return 0, time.Time{} }
func (noRoutes) Settled() bool                    { return true }
func (noRoutes) OnIdle(func(string))              {}

// Hosting is the service. Use New.
type Hosting struct {
	o        Options
	home     home
	ports    *ports
	starts   chan struct{} // see runner
	endpoint hypershift.APIEndpoint
	metrics  *metrics
	clusters *loop.Loop
	secrets  *loop.Loop

	mu      sync.Mutex
	hosted  map[loop.Key]*cluster
	seen    map[loop.Key]struct{} // HostedClusters that have been looked at
	names   map[string]loop.Key   // TLS server names and whose they are
	changes chan struct{}         // closed and replaced when a plane changes
	running sync.WaitGroup        // runners

	routing sync.Mutex // one table after the other
}

// New checks the options; nothing happens before Run.
func New(o Options) (*Hosting, error) {
	host, portText, err := net.SplitHostPort(o.Advertise)
	port, perr := strconv.ParseUint(portText, 10, 16)
	if err = errors.Join(err, perr); err != nil || host == "" {
		return nil, fmt.Errorf("the advertised address %q is not HOST:PORT", o.Advertise)
	}
	if o.DataDir == "" {
		return nil, errors.New("hosting needs a data directory")
	}
	if o.Idle == 0 {
		o.Idle = 10 * time.Minute
	}
	if o.Routes == nil {
		o.Routes = noRoutes{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.FirstPort == 0 {
		o.FirstPort, o.LastPort = firstPort, lastPort
	}
	if o.Starts == 0 {
		o.Starts = 2 * runtime.NumCPU()
	}
	if o.pace == (pace{}) {
		o.pace = usualPace()
	}
	h := &Hosting{
		starts: make(chan struct{}, o.Starts),
		o:      o, home: home{o.DataDir}, ports: &ports{first: o.FirstPort, last: o.LastPort,
			taken: map[int]loop.Key{}},
		endpoint: hypershift.APIEndpoint{Host: host, Port: int32(port)},
		hosted:   map[loop.Key]*cluster{}, names: map[string]loop.Key{}, seen: map[loop.Key]struct{}{}, changes: make(
			chan struct{}),
	}
	h.metrics = newMetrics(o.Metrics, h.count)
	h.clusters = loop.New(loop.Options{
		Client: o.Client, Resource: hypershift.HostedClusters(), Reconcile: h.reconcile, Workers: 16, Log: o.Log, Observe: h.metrics.reconciled("hostedclusters"),
	})
	o.Routes.OnIdle(h.abandoned)
	keeper := &secretKeeper{o.Client}
	h.secrets = loop.New(loop.Options{
		Client: o.Client, Resource: externalSecrets(), Reconcile: keeper.reconcile, Limit: callLimit, Log: o.Log, Observe: h.metrics.reconciled("externalsecrets"),
	})
	return h, nil
}

// Run hosts until ctx ends, and then leaves the planes running. It is called
// once; a second hosting in the same directory is refused. The other parts of
// the service, which need the directory or the planes, run beside it, each
// until ctx ends; the first that fails ends all.
func (h *Hosting) Run(ctx context.Context, parts ...func(context.Context) error) error {
	unlock, err := h.home.lock()
	if err != nil {
		return fmt.Errorf("hosting: %w", err)
	}
	defer unlock()
	h.remember()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return h.clusters.Run(ctx) })
	group.Go(func() error { return h.secrets.Run(ctx) })
	group.Go(func() error { h.sweep(ctx); return nil })
	for _, part := range parts {
		group.Go(func() error { return part(ctx) })
	}
	err = group.Wait()
	h.running.Wait()
	return err
}

// Ready returns nil when the HostedClusters of the management cluster are
// known.
func (h *Hosting) Ready(ctx context.Context) error {
	return errors.Join(h.clusters.Ready(ctx), h.secrets.Ready(ctx))
}

// remember keeps the names and ports of planes that there are for them,
// before anybody else asks for one.
func (h *Hosting) remember() {
	for _, key := range h.home.planes() {
		rec, err := readRecord(h.home.plane(key))
		if err != nil {
			continue // said when it is reconciled
		}
		if rec.Port != 0 {
			h.ports.claim(key, rec.Port)
		}
		for _, name := range rec.Hosts {
			h.names[name] = key
		}
	}
}

// sweep reports planes without a HostedCluster. They are left alone: an
// object that is not there may be a management cluster that was restored from
// an old backup, and only a deletion that was asked for deletes data.
func (h *Hosting) sweep(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-h.clusters.Synced():
	}
	orphans := 0
	for _, key := range h.home.planes() {
		if h.clusters.Get(key) == nil {
			orphans++
			h.o.Log.Warn("a plane has no HostedCluster; its process and data are left as they are", "plane",
				key.String())
		}
	}
	h.metrics.orphans.Set(float64(orphans))
}

// Plane returns a hosted cluster's plane; false when it does not serve.
func (h *Hosting) Plane(namespace, name string) (plane.Config, bool) {
	c := h.lookup(loop.Key{Namespace: namespace, Name: name})
	if c == nil {
		return plane.Config{}, false
	}
	v := c.runner.view()
	return v.Config, v.State == ready
}

// ErrNotHosted is the error of a name that no HostedCluster has.
var ErrNotHosted = errors.New("no such hosted cluster")

// abandoned looks at a plane whose last connection has ended: it may sleep.
func (h *Hosting) abandoned(serverName string) {
	h.mu.Lock()
	key, ok := h.names[serverName]
	h.mu.Unlock()
	if ok {
		h.clusters.Trigger(key)
	}
}

// Wake returns when a hosted cluster's plane serves, which it does not while
// it sleeps, starts or is upgraded; the wish counts as use of the plane.
func (h *Hosting) Wake(ctx context.Context, namespace, name string) error {
	_, err := h.wake(ctx, loop.Key{Namespace: namespace, Name: name})
	return err
}

// WakeServer is Wake by TLS server name, for the router; it returns where the
// plane listens.
func (h *Hosting) WakeServer(ctx context.Context, serverName string) (backend string, err error) {
	h.mu.Lock()
	key, ok := h.names[serverName]
	h.mu.Unlock()
	if !ok {
		return "", fmt.Errorf("%s: %w", serverName, ErrNotHosted)
	}
	return h.wake(ctx, key)
}

// wakeTries is how often a plane may fail to start before those who wait for
// it are told. It is tried further; status says why.
const wakeTries = 3

func (h *Hosting) wake(ctx context.Context, key loop.Key) (backend string, err error) {
	asked := false
	var waitsFor *cluster
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if waitsFor != nil {
			waitsFor.asked = time.Now()
			waitsFor.waiting--
		}
	}()
	for {
		h.mu.Lock()
		changes, c, resting := h.changes, h.hosted[key], false
		if c != waitsFor && c != nil {
			c.asked = time.Now()
			c.waiting++
			waitsFor = c
		}
		if c != nil {
			resting = c.resting
		}
		h.mu.Unlock()
		synced := h.clusters.Ready(ctx) == nil
		if c == nil && synced && h.clusters.Get(key) == nil {
			return "", fmt.Errorf("%s: %w", key, ErrNotHosted)
		}
		if c != nil {
			v := c.runner.view()
			switch {
			case v.State == ready && !resting:
				return v.Address, nil
			case v.Failure != nil && v.Failure.Count >= wakeTries && asked:
				return "", fmt.Errorf("waking %s: %s", key, v.Failure)
			}
			if !asked {
				asked = true
				h.clusters.Trigger(key)
			}
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("waiting for the plane of %s: %w", key, ctx.Err())
		case <-changes:
		}
	}
}

func (h *Hosting) lookup(key loop.Key) *cluster {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hosted[key]
}

// changed tells whoever waits for a plane that one changed.
func (h *Hosting) changed(key loop.Key) {
	h.mu.Lock()
	h.stir()
	h.mu.Unlock()
	h.clusters.Trigger(key)
}

// stir has those who wait look again. The caller holds mu.
func (h *Hosting) stir() {
	close(h.changes)
	h.changes = make(chan struct{})
}

// count is how many planes are in each state.
func (h *Hosting) count() map[state]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := map[state]int{down: 0, starting: 0, ready: 0, unready: 0, stopping: 0, failing: 0}
	for _, c := range h.hosted {
		n[c.runner.view().State]++
	}
	return n
}

// publish gives the router the table. Before all HostedClusters have been
// looked at once it would be incomplete, and the router goes on with its own.
func (h *Hosting) publish() {
	h.routing.Lock()
	defer h.routing.Unlock()
	if h.clusters.Ready(context.Background()) != nil {
		return
	}
	keys := h.clusters.Keys()
	h.mu.Lock()
	for _, key := range keys {
		if _, ok := h.seen[key]; !ok {
			h.mu.Unlock()
			return
		}
	}
	table := make([]router.Route, 0, len(h.hosted))
	var shut []*cluster
	for _, c := range h.hosted {
		if c.route.ServerName != "" {
			table = append(table, c.route)
		}
		if c.route.Asleep {
			shut = append(shut, c)
		}
	}
	h.mu.Unlock()
	h.o.Routes.Set(table)
	h.mu.Lock()
	for _, c := range shut {
		c.shut = c.route.Asleep
	}
	h.mu.Unlock()
}
