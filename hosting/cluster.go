package hosting

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
	"atoll.dev/hosting/router"
)

// callLimit bounds the calls of one reconciliation to the management cluster: an
// API server that hangs must not keep a worker.
const callLimit = 20 * time.Second

// hostedCluster is the state of a HostedCluster in the memory of hosting. The fields without a mark
// belong to its reconciliation, of which one runs at a time.
type hostedCluster struct {
	id controlplane.ID

	hibernation  hibernation
	status       *hypershift.HostedClusterStatus // as last written; the watch may be behind
	secret       [sha256.Size]byte               // of the administrator's kubeconfig as last written
	discarding   bool                            // discarding the plane was ordered
	partsDeleted bool                            // deletion of node pools and credentials was requested
	forgotten    string                          // order of a restore of which nothing is left
	isNew        bool                            // the store of the backups has none of the plane
	issuers      []cluster.Issuer                // as last applied; nil before
	managed      [sha256.Size]byte               // of the ManagedCluster as last written
	caWaits      string                          // why a rotation of the CA cannot be completed; "" for no reason

	// Of Hosting.mu:
	demand      demand
	route       router.Route
	forward     string // HOST:PORT of the router of the management cluster to which the plane has moved; "" otherwise
	routeClosed bool   // a table in which the route is asleep was given to Routes
	// stopping is true from the decision to stop or discard the plane until the
	// runtime has accepted an order to run it. Meanwhile no Wake returns, even while
	// Observe still shows the plane as ready.
	stopping bool
}

// cluster returns the state of a HostedCluster; it adds an empty one for a new id.
func (h *Hosting) cluster(id controlplane.ID) *hostedCluster {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.hosted[id]
	if c == nil {
		c = &hostedCluster{id: id}
		h.hosted[id] = c
	}
	return c
}

// reconcile brings one HostedCluster's plane nearer to its spec, and its status
// up to date.
func (h *Hosting) reconcile(ctx context.Context, key loop.Key, object *unstructured.Unstructured) (
	time.Duration, error,
) {
	id := controlplane.ID(key)
	if object == nil {
		return 0, h.forget(id)
	}
	defer h.markSeen(id)
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if object.GetDeletionTimestamp() != nil {
		return 0, h.finalize(ctx, id, object)
	}
	if err := h.addFinalizer(ctx, object); loop.IsGone(err) {
		return 0, nil // the watch is behind; a plane would outlive its HostedCluster
	} else if err != nil {
		return 0, err
	}
	if c := h.lookup(id); c != nil && c.discarding { // an older HostedCluster of this name was deleted
		if done, err := h.discard(c); !done || err != nil {
			return 0, err
		}
	}
	return h.follow(ctx, h.cluster(id), object)
}

// follow decides about one HostedCluster, executes the decision, and writes the
// status.
func (h *Hosting) follow(ctx context.Context, c *hostedCluster, object *unstructured.Unstructured) (
	time.Duration, error) {
	hc, invalid := loop.Decode[hypershift.HostedCluster](object)
	if invalid != nil {
		hc = metadataOf(object)
	}
	now := time.Now()
	nodesAgain, err := h.readNodesOfEarlierCA(ctx, c, hc)
	if err != nil {
		return 0, err
	}
	d, err := h.decideAndOrder(c, hc, invalid, nil, now)
	if failure, refused := errors.AsType[*controlplane.Failure](err); refused {
		d, err = h.decideAndOrder(c, hc, invalid, failure, now)
	}
	if err != nil {
		return 0, err
	}
	h.markSeen(c.id)
	h.publish()
	r := d.Report
	if r.Plane, err = h.o.Planes.Observe(c.id); err != nil {
		return 0, err
	}
	if r.Plane.State == controlplane.Ready || r.Plane.State == controlplane.Unready {
		h.o.Backups.Begin(c.id, r.Plane.LastStart.Served)
	} else {
		h.o.Backups.End(c.id)
	}
	if s, isMade := h.o.Backups.State(c.id); isMade {
		r.Backup = &s
	}
	if w, isKnown := h.o.Backups.Window(c.id); isKnown {
		r.Window = backupStatus(w, r.Backup)
	}
	r.DrillFailed = h.o.Drills.Failure(c.id)
	issuersErr := h.applyIssuers(ctx, c, hc, &r)
	restoreErr := h.finishRestore(ctx, c, &r)
	again, rotationErr := h.finishRotationSteps(ctx, c, &r)
	secretErr := h.writeSecret(ctx, c, hc, &r)
	if err := h.writeStatus(ctx, c, hc, r, now); err != nil {
		return 0, err
	}
	again = earlier(earlier(d.Again, nodesAgain), again)
	if err := h.writeManagedCluster(ctx, c, hc); err != nil { // a view of the cluster; its failure delays nothing else
		h.o.Log.Warn("a ManagedCluster was not written and is tried again", "plane", c.id.String(), "error", err)
		again = earlier(again, managedRetry)
	}
	return again, errors.Join(secretErr, restoreErr, rotationErr, issuersErr)
}

// metadataOf is a HostedCluster whose spec cannot be decoded.
func metadataOf(object *unstructured.Unstructured) *hypershift.HostedCluster {
	hc := &hypershift.HostedCluster{}
	hc.APIVersion, hc.Kind = object.GetAPIVersion(), object.GetKind()
	hc.Name, hc.Namespace, hc.UID = object.GetName(), object.GetNamespace(), object.GetUID()
	hc.Generation, hc.Annotations, hc.Labels = object.GetGeneration(), object.GetAnnotations(), object.GetLabels()
	return hc
}

// decideAndOrder decides and gives the order to the runtime. It records an order to
// run only after the runtime has accepted it: a refused spec never changes the
// route. It records an order to stop before the runtime gets it, and decides again
// when a Wake came while that was decided. The error may be the runtime's refusal,
// a *controlplane.Failure; then nothing is recorded.
func (h *Hosting) decideAndOrder(c *hostedCluster, hc *hypershift.HostedCluster, invalid error,
	refused *controlplane.Failure, now time.Time) (decision, error) {
	for {
		s, err := h.gather(c, hc, invalid)
		if err != nil {
			return decision{}, err
		}
		s.Refused = refused
		d := decide(s, now)
		if d.Run {
			if err := h.o.Planes.Ensure(c.id, d.Spec); err != nil {
				return decision{}, err
			}
			h.recordRun(c, d)
			return d, nil
		}
		if h.recordStop(c, s, d) {
			return d, h.o.Planes.Sleep(c.id)
		}
	}
}

// gather collects the situation of a cluster. A cluster whose spec is invalid, that
// is cannot be decoded, keeps its server names and claims no other: hc lacks the
// name that the spec orders.
func (h *Hosting) gather(c *hostedCluster, hc *hypershift.HostedCluster, invalid error) (situation, error) {
	o, err := h.o.Planes.Observe(c.id)
	if err != nil {
		return situation{}, err
	}
	m := h.findMove(c, hc, o) // before IsSuperseded: the order may have been withdrawn too late
	s := situation{
		Cluster: hc, Invalid: invalid, Plane: o, Hibernation: c.hibernation, Uses: map[string]use{},
		Releases: h.o.Releases, Endpoint: h.endpoint, Idle: h.o.Idle,
		Upgrade: hc.Status.Upgrade, Upgrades: h.o.Upgrades, Move: m, Superseded: h.o.Backups.IsSuperseded(c.id),
	}
	s.Shown = hc.Status.Restore
	if c.status != nil {
		s.Upgrade, s.Shown = c.status.Upgrade, c.status.Restore
	}
	names := slices.Clone(o.LastStart.ServerNames)
	if invalid == nil {
		if !s.Move.mustStop() {
			s.Restore = h.findRestore(c, hc, o.LastStart)
		}
		if s.Rotations, err = h.findRotations(c, hc); err != nil {
			return situation{}, err
		}
		name := serverName(hc)
		s.NameTaken = h.claimName(c.id, name, o.LastStart.ServerNames) != c.id
		names = append(names, name)
	}
	// The order matters: demand before RouterIsCurrent, RouterIsCurrent before Activity.
	h.mu.Lock()
	s.Demand, s.RouteClosed = c.demand, c.routeClosed
	s.Nodes = h.nodes.total(c.id)
	h.mu.Unlock()
	s.RouteClosed = s.RouteClosed && h.o.Routes.RouterIsCurrent()
	for _, n := range names {
		open, last := h.o.Routes.Activity(n)
		s.Uses[n] = use{Open: open, Last: last}
	}
	return s, nil
}

// recordRun records a decision to run the plane, whose order the runtime has
// accepted.
func (h *Hosting) recordRun(c *hostedCluster, d decision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.record(d)
	if c.stopping {
		c.stopping = false
		h.wakeWaiters()
	}
}

// recordStop records a decision to stop the plane. It returns false, and records
// nothing, when the plane should stop because nobody uses it and a Wake has come
// since the situation was gathered. It does not matter whether the plane ran in
// that situation: it may have started since, and the Wake may have returned.
func (h *Hosting) recordStop(c *hostedCluster, s situation, d decision) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.Report.Power == asleep && c.demand != s.Demand {
		return false
	}
	if c.forward != d.Forward {
		h.wakeWaiters()
	}
	c.record(d)
	c.stopping = true
	return true
}

// record stores the part of a decision that later decisions and the routes use.
// The caller holds Hosting.mu.
func (c *hostedCluster) record(d decision) {
	c.hibernation, c.route, c.forward = d.Hibernation, d.Route, d.Forward
	if !c.route.Asleep {
		c.routeClosed = false
	}
}
