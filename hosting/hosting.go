// Package hosting runs hosted control planes on a management cluster that has no
// HyperShift. It follows the HostedClusters there, has a runtime run a control
// plane for each, and writes the HostedCluster's status with HyperShift's
// conditions.
//
// Decisions are pure functions: decide (the plane to run, and its route),
// power.decide (asleep or awake) and decideStatus (conditions). Hosting collects
// their inputs, executes their results, and never waits for a plane.
//
// The packages below are other parts of the same service: controlplane describes
// planes, process runs them, loop watches objects, nodepool, credential and
// router are controllers and the public port, backups makes the planes' backups,
// and drill restores them for practice. Only cli imports them.
package hosting

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"

	"atoll.dev/api/hypershift"
	"atoll.dev/backup"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
	"atoll.dev/hosting/router"
)

// Options describe a Hosting. Client, Planes and Advertise are required.
type Options struct {
	Client    dynamic.Interface // of the management cluster, with hosting's rights
	Planes    Planes            // the runtime
	Releases  Releases          // that Planes can run
	Advertise string            // HOST:PORT of the router, where customers reach all planes
	Idle      time.Duration     // without a connection, before a hibernated plane stops; default 10 min
	Upgrades  Upgrades          // limits of upgrades
	Routes    Routes            // default: there is no router
	Backups   Backups           // default: no backups are made
	Drills    Drills            // default: no backup is restored for practice
	Issuers   Issuers           // default: planes trust no issuer of tokens
	// Restored makes everything that is stored beside a plane agree with its restored data; the plane serves. It may
	// be repeated; default: nothing.
	Restored func(ctx context.Context, id controlplane.ID, admin controlplane.Admin) error

	Log     *slog.Logger          // default: none
	Metrics prometheus.Registerer // default: none
}

// Routes is hosting's side of the router; router.Control implements it.
type Routes interface {
	// Set replaces the whole table.
	Set([]router.Route)
	// Activity returns how many connections a server name has, and when the last
	// of them ended.
	Activity(serverName string) (open int, last time.Time)
	// RouterIsCurrent reports whether the router has confirmed the last table, and
	// Activity's answers are newer than that.
	RouterIsCurrent() bool
	// OnIdle sets the function that is called when the last connection of a server
	// name has ended.
	OnIdle(func(serverName string))
}

// Backups makes the backups of planes; backups.Backups implements it.
type Backups interface {
	// Begin has the backup of a running plane made, until End. Both may be repeated. served is the release with which
	// the plane was ready last, which the backup names for a recovery; "" when it was not ready yet.
	Begin(id controlplane.ID, served controlplane.Version)
	End(id controlplane.ID)
	// Deleted has the backups of a deleted cluster expire, unless another management cluster has the plane. It may be
	// repeated, and is called once before the plane's data is deleted.
	Deleted(id controlplane.ID)
	// Leave has a plane move to another management cluster, and returns how far that is. It returns at once, and may be
	// repeated. The caller calls Stopped when the plane's process has ended and is not started again; shown goes with it.
	Leave(id controlplane.ID, move string) controlplane.Leaving
	Stopped(id controlplane.ID, shown controlplane.Shown)
	// Stay ends a move whose order was withdrawn, unless the other side has the plane. It may take long, and is
	// repeated: while the plane must not run here, IsSuperseded says so.
	Stay(id controlplane.ID)
	// IsSuperseded reports whether another management cluster has the plane: it never runs on this one again.
	IsSuperseded(id controlplane.ID) bool
	// State returns the state of a plane's backup; false when none is made.
	State(id controlplane.ID) (backup.State, bool)
	// Window returns to which part of the past a plane can be restored; false when that is not known.
	Window(id controlplane.ID) (controlplane.BackupWindow, bool)
	// Prepare has the data of a restore made beside the plane's, and returns how far that is. It returns at once, and
	// may be repeated. The runtime replaces the plane's data when its spec names the order.
	Prepare(id controlplane.ID, o controlplane.RestoreOrder) controlplane.Preparation
	// Forget removes what an executed or failed order has left. It may be repeated.
	Forget(id controlplane.ID, order string)
	// HasRemains reports whether something is left of an order that Forget removes.
	HasRemains(id controlplane.ID, order string) bool
	// Abandon ends the preparation for a plane that is deleted, and reports whether it has ended. It may be repeated;
	// hosting is notified when it has.
	Abandon(id controlplane.ID) (done bool)
}

// Drills has the results of restore drills; drill.Drills implements it.
type Drills interface {
	// Failure returns why the last drill of a plane's backup failed; "" when it did not.
	Failure(id controlplane.ID) string
	// Forget removes the result of a plane that is deleted. It may be repeated.
	Forget(id controlplane.ID)
}

// noDrills are the Drills of a hosting without any.
type noDrills struct{}

func (noDrills) Failure(controlplane.ID) string { return "" }
func (noDrills) Forget(controlplane.ID)         {}

// Issuers gives planes the issuers of tokens that their customers trust; issuer.Keeper implements it.
type Issuers interface {
	// Apply makes issuers those of a plane, whether or not it runs. problems names, for the customer, those that cannot
	// be used. It returns at once and may be repeated; hosting is notified when there are other keys or problems.
	Apply(id controlplane.ID, issuers []cluster.Issuer) (problems []string, err error)
	// Forget ends the work for a plane that is deleted. It may be repeated.
	Forget(id controlplane.ID)
}

// noIssuers are the Issuers of a hosting whose planes trust none.
type noIssuers struct{}

func (noIssuers) Apply(_ controlplane.ID, issuers []cluster.Issuer) ([]string, error) {
	if len(issuers) == 0 {
		return nil, nil
	}
	return []string{"this management cluster accepts no tokens of issuers"}, nil
}

func (noIssuers) Forget(controlplane.ID) {}

// noBackups are the Backups of a hosting that makes none.
type noBackups struct{}

func (noBackups) Begin(controlplane.ID, controlplane.Version) {}
func (noBackups) End(controlplane.ID)                         {}
func (noBackups) Deleted(controlplane.ID)                     {}
func (noBackups) Leave(controlplane.ID, string) controlplane.Leaving {
	return controlplane.Leaving{State: controlplane.LeavingWaits, Message: "this management cluster makes no backups"}
}

func (noBackups) Stay(controlplane.ID)                        {}
func (noBackups) Stopped(controlplane.ID, controlplane.Shown) {}
func (noBackups) IsSuperseded(controlplane.ID) bool           { return false }
func (noBackups) State(controlplane.ID) (backup.State, bool)  { return backup.State{}, false }

func (noBackups) Window(controlplane.ID) (controlplane.BackupWindow, bool) {
	return controlplane.BackupWindow{}, false
}

func (noBackups) Prepare(_ controlplane.ID, o controlplane.RestoreOrder) controlplane.Preparation {
	if o.ID == controlplane.Recovery {
		return controlplane.Preparation{State: controlplane.PreparationNone}
	}
	return controlplane.Preparation{State: controlplane.PreparationFailed,
		Message: "this management cluster makes no backups"}
}

func (noBackups) Forget(controlplane.ID, string) {}

func (noBackups) HasRemains(controlplane.ID, string) bool { return false }

func (noBackups) Abandon(controlplane.ID) bool { return true }

// noRoutes are the Routes of a management cluster without a router.
type noRoutes struct{}

func (noRoutes) Set([]router.Route)               {}
func (noRoutes) Activity(string) (int, time.Time) { return 0, time.Time{} }
func (noRoutes) RouterIsCurrent() bool            { return true }
func (noRoutes) OnIdle(func(string))              {}

// Hosting is the service. Use New.
type Hosting struct {
	o        Options
	endpoint hypershift.APIEndpoint
	metrics  *metrics
	clusters *loop.Loop
	secrets  *loop.Loop

	mu      sync.Mutex
	hosted  map[controlplane.ID]*hostedCluster
	seen    map[controlplane.ID]struct{} // HostedClusters that were reconciled at least once
	names   map[string]controlplane.ID   // TLS server names, and the clusters that hold them
	managed managedUse
	nodes   orderedNodes
	changes chan struct{} // closed and replaced when a plane changes

	publishing sync.Mutex // held while a table is given to Routes, so that tables stay in order
}

// New checks the options; nothing happens before Run.
func New(o Options) (*Hosting, error) {
	host, portText, err := net.SplitHostPort(o.Advertise)
	port, perr := strconv.ParseUint(portText, 10, 16)
	if err = errors.Join(err, perr); err != nil || host == "" {
		return nil, fmt.Errorf("the advertised address %q is not HOST:PORT", o.Advertise)
	}
	if o.Planes == nil {
		return nil, errors.New("hosting needs a runtime of control planes")
	}
	if o.Idle == 0 {
		o.Idle = 10 * time.Minute
	}
	o.Upgrades = o.Upgrades.withDefaults()
	if o.Routes == nil {
		o.Routes = noRoutes{}
	}
	if o.Backups == nil {
		o.Backups = noBackups{}
	}
	if o.Drills == nil {
		o.Drills = noDrills{}
	}
	if o.Issuers == nil {
		o.Issuers = noIssuers{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	h := &Hosting{
		o: o, endpoint: hypershift.APIEndpoint{Host: host, Port: int32(port)},
		hosted: map[controlplane.ID]*hostedCluster{}, names: map[string]controlplane.ID{},
		seen: map[controlplane.ID]struct{}{}, changes: make(chan struct{}), nodes: orderedNodes{},
	}
	h.metrics = newMetrics(o.Metrics, h.countStates, h.countFull)
	h.clusters = loop.New(loop.Options{
		Client: o.Client, Resource: hypershift.HostedClusters(), Reconcile: h.reconcile, Workers: 16,
		Log: o.Log, Observe: h.metrics.reconciled("hostedclusters"),
	})
	o.Routes.OnIdle(h.reconsider)
	keeper := &secretKeeper{o.Client}
	h.secrets = loop.New(loop.Options{
		Client: o.Client, Resource: externalSecrets(), Reconcile: keeper.reconcile, Limit: callLimit,
		Log: o.Log, Observe: h.metrics.reconciled("externalsecrets"),
	})
	return h, nil
}

// Run hosts until ctx ends, and then leaves the planes running. It is called
// once; it fails when another hosting has the same planes. parts are the other
// parts of the service, which need the planes; they run until ctx ends, and the
// first that fails ends all.
func (h *Hosting) Run(ctx context.Context, parts ...func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	closePlanes, err := h.o.Planes.Open(ctx, h.planeChanged)
	if err != nil {
		return fmt.Errorf("hosting: %w", err)
	}
	h.recoverNames()
	group.Go(func() error { return h.clusters.Run(ctx) })
	group.Go(func() error { return h.secrets.Run(ctx) })
	group.Go(func() error { h.reportOrphans(ctx); return nil })
	for _, part := range parts {
		group.Go(func() error { return part(ctx) })
	}
	err = group.Wait()
	cancel()
	closePlanes()
	return err
}

// Ready returns nil when the HostedClusters and ExternalSecrets of the management
// cluster have been listed.
func (h *Hosting) Ready(ctx context.Context) error {
	return errors.Join(h.clusters.Ready(ctx), h.secrets.Ready(ctx))
}

// recoverNames reserves the server names of planes that an earlier hosting
// started, before any other cluster can claim them.
func (h *Hosting) recoverNames() {
	for _, id := range h.o.Planes.List() {
		if id.IsScratch() {
			continue
		}
		o, err := h.o.Planes.Observe(id)
		if err != nil {
			continue // its reconciliation reports it
		}
		for _, name := range o.LastStart.ServerNames {
			h.names[name] = id
		}
	}
}

// reportOrphans logs and counts planes without a HostedCluster. They keep
// running: a missing object may mean that the management cluster was restored
// from an old backup, and only an ordered deletion deletes data.
func (h *Hosting) reportOrphans(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-h.clusters.Synced():
	}
	orphans := 0
	for _, id := range h.o.Planes.List() {
		if !id.IsScratch() && h.clusters.Get(loop.Key(id)) == nil {
			orphans++
			h.o.Log.Warn("a plane has no HostedCluster; its process and data stay", "plane", id.String())
		}
	}
	h.metrics.orphans.Set(float64(orphans))
}

// Client returns the administrator's way into a hosted cluster's plane, and
// controlplane.ErrNotServing when it does not serve.
func (h *Hosting) Client(id controlplane.ID) (controlplane.Admin, error) {
	if h.lookup(id) == nil {
		return controlplane.Admin{}, fmt.Errorf("%s: %w", id, controlplane.ErrNotServing)
	}
	return h.o.Planes.Client(id)
}

// Sign signs a client certificate with the authority of a hosted cluster's plane.
func (h *Hosting) Sign(id controlplane.ID, r controlplane.CertificateRequest) (controlplane.Certificate, error) {
	return h.o.Planes.Sign(id, r)
}

// lookup returns nil for a cluster that was not reconciled yet.
func (h *Hosting) lookup(id controlplane.ID) *hostedCluster {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hosted[id]
}

// BackupChanged reconciles the cluster of a plane whose backup began or ceased to fail.
func (h *Hosting) BackupChanged(id controlplane.ID) { h.clusters.Trigger(loop.Key(id)) }

// DrillChanged reconciles the cluster of a plane whose backup was restored for practice.
func (h *Hosting) DrillChanged(id controlplane.ID) { h.clusters.Trigger(loop.Key(id)) }

// IssuersChanged reconciles the cluster of a plane with other keys or problems of its issuers.
func (h *Hosting) IssuersChanged(id controlplane.ID) { h.clusters.Trigger(loop.Key(id)) }

// planeChanged wakes all waiters, and reconciles the plane's cluster.
func (h *Hosting) planeChanged(id controlplane.ID) {
	if id.IsScratch() {
		return
	}
	h.mu.Lock()
	h.wakeWaiters()
	h.mu.Unlock()
	h.clusters.Trigger(loop.Key(id))
}

// wakeWaiters has every call of Wake look at its plane again. The caller holds mu.
func (h *Hosting) wakeWaiters() {
	close(h.changes)
	h.changes = make(chan struct{})
}

// ids returns the HostedClusters that were reconciled.
func (h *Hosting) ids() []controlplane.ID {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.hosted))
}

// countFull counts the planes whose etcd is full.
func (h *Hosting) countFull() (n float64) {
	for _, id := range h.ids() {
		if o, err := h.o.Planes.Observe(id); err == nil && o.Store.Full {
			n++
		}
	}
	return n
}

// countStates counts the planes in each state.
func (h *Hosting) countStates() map[controlplane.State]int {
	n := map[controlplane.State]int{}
	for _, s := range controlplane.States {
		n[s] = 0
	}
	for _, id := range h.ids() {
		if o, err := h.o.Planes.Observe(id); err == nil {
			n[o.State]++
		}
	}
	return n
}
