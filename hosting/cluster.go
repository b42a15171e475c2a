package hosting

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/loop"
	"atoll.dev/hosting/router"
	"atoll.dev/plane"
)

// finalizer keeps a HostedCluster until nothing of its plane is left.
const finalizer = "hosting.atoll.dev/plane"

// callLimit bounds what one reconciliation asks of the management cluster: an
// API server that hangs must not keep a worker.
const callLimit = 20 * time.Second

// defaultServiceCIDR is atoll-kube's own.
const defaultServiceCIDR = "10.96.0.0/16"

// cluster is what hosting knows of a HostedCluster. The fields without a mark
// belong to its reconciliation, of which there is one at a time.
type cluster struct {
	runner *runner
	cancel context.CancelFunc

	status  *hypershift.HostedClusterStatus // as last written; the watch may be behind
	secret  [sha256.Size]byte               // of the administrator's kubeconfig as last written
	wish    bool                            // hibernated, as last seen
	ordered time.Time                       // when it became so
	swept   bool                            // node pools and credentials have been deleted

	// Of Hosting.mu:
	asked   time.Time // last time somebody woke it
	waiting int       // who wait for it to wake
	route   router.Route
	shut    bool // the router has been told that it sleeps
	resting bool // it was decided that there shall be no process: one that is still there is no answer to a wake
}

// cluster returns what is known of a HostedCluster. Its runner does nothing
// before steer.
func (h *Hosting) cluster(key loop.Key) (*cluster, error) {
	if c := h.lookup(key); c != nil {
		return c, nil
	}
	r, err := newRunner(key, h.home.plane(key), h.ports, h.o.Log)
	if err != nil {
		return nil, err
	}
	r.starts, r.pace = h.starts, h.o.pace
	r.took = func(d time.Duration) { h.metrics.starts.Observe(d.Seconds()) }
	r.changed = func(v view) { h.metrics.changed(v); h.changed(key) }
	c := &cluster{runner: r}
	h.mu.Lock()
	h.hosted[key] = c
	h.mu.Unlock()
	return c, nil
}

// steer gives a cluster's runner its target, and lets it run with the first.
func (h *Hosting) steer(ctx context.Context, c *cluster, t target) {
	c.runner.set(t)
	if c.cancel == nil {
		ctx, c.cancel = context.WithCancel(ctx)
		h.running.Go(func() { c.runner.run(ctx) })
	}
}

// reconcile brings one HostedCluster's plane nearer to its spec, and its
// status to the truth.
func (h *Hosting) reconcile(ctx context.Context, key loop.Key, object *unstructured.Unstructured) (time.Duration,
	error) {
	if object == nil {
		h.mu.Lock()
		delete(h.seen, key)
		h.mu.Unlock()
		c := h.lookup(key)
		if c != nil && c.runner.target().Discard {
			return 0, h.drop(key, c) // it went while it was finalized once more than needed
		}
		if c != nil {
			h.o.Log.Warn("a HostedCluster is gone without having been finalized; its plane is left as it is", "plane",
				key.String())
		}
		return 0, nil
	}
	defer h.looked(key)
	calls, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if object.GetDeletionTimestamp() != nil {
		return 0, h.finalize(ctx, calls, key, object)
	}
	if err := h.addFinalizer(calls, object); apierrors.IsNotFound(err) {
		return 0, nil // it went before we saw it: a plane would outlive it
	} else if err != nil {
		return 0, err
	}
	hc, invalid := loop.Decode[hypershift.HostedCluster](object)
	if invalid != nil {
		hc = &hypershift.HostedCluster{}
		hc.Name, hc.Namespace, hc.Generation, hc.UID, hc.Annotations = object.GetName(), object.GetNamespace(),
			object.GetGeneration(), object.GetUID(), object.GetAnnotations()
		hc.APIVersion, hc.Kind = object.GetAPIVersion(), object.GetKind()
	}
	c, err := h.cluster(key)
	if err != nil {
		return 0, err
	}
	now := time.Now()
	o := observation{Generation: hc.Generation, Endpoint: h.endpoint}
	t, again := h.decide(key, c, hc, invalid, &o, now)
	h.steer(ctx, c, t)
	h.settle(c, t)
	h.looked(key)
	h.publish()
	o.Plane = c.runner.view()
	serr := h.writeSecret(calls, c, hc, &o)
	if err := h.writeStatus(calls, c, hc, o, now); err != nil {
		return 0, err
	}
	return again, serr
}

// decide says what the plane's runner is to do, changes the plane's route, and
// fills the observation with why.
func (h *Hosting) decide(key loop.Key, c *cluster, hc *hypershift.HostedCluster, invalid error, o *observation,
	now time.Time) (t target, again time.Duration) {
	soon := func(d time.Duration) {
		if d > 0 && (again == 0 || d < again) {
			again = d
		}
	}
	v := c.runner.view()
	rec := v.Record
	name := serverName(hc)
	if invalid != nil {
		o.Problems = []string{invalid.Error()}
	} else {
		o.Problems = problems(hc.Spec, rec.ServiceCIDR)
		if holder := h.claimName(key, name, rec.Hosts); holder != key {
			o.Problems = append(o.Problems, fmt.Sprintf("spec.kubeAPIServerDNSName: %s is another cluster's", name))
		}
		var left time.Duration
		o.Paused, left, o.PauseError = paused(hc.Spec.PausedUntil, now)
		soon(left)
		written := ""
		if rec.Born {
			written = rec.Release
		}
		o.Release, o.Refused = h.o.Catalogue.pick(hc.Spec.Release.Image, written)
	}
	t = target{Release: o.Release, Config: plane.Config{
		Name: hc.Name, Binary: h.o.Catalogue[o.Release], ServiceCIDR: serviceCIDR(hc.Spec), ExternalHosts: []string{
			name}, SimulatedNodes: true,
	}}
	if t.Config.ServiceCIDR == "" {
		t.Config.ServiceCIDR = defaultServiceCIDR
	}
	keep := len(o.Problems) > 0 || o.Refused != nil || o.Paused
	if !keep && rec.Release != "" && rec.Release != o.Release && v.PID != 0 {
		if err := runnable(t.Config.Binary); err != nil { // the plane that runs is worth more
			reason, message := classify(err)
			o.Failure, keep = &failure{Reason: reason, Message: message}, true
			soon(time.Second)
		}
	}
	if keep { // the plane stays as it was when it was last started, if it was
		t.Release, t.Config.ExternalHosts, t.Config.Binary = rec.Release, rec.Hosts, h.o.Catalogue[rec.Release]
		o.Release = rec.Release
		if len(rec.Hosts) > 0 {
			name = rec.Hosts[0]
		}
	}
	o.Image = releaseRepository + o.Release
	missing := v.PID == 0 && (rec.Born || lived(hc.Status)) && !h.home.holds(key)
	if missing { // a new plane in its place would be an empty one, and be called available
		o.Failure = &failure{Reason: failedData,
			Message: "the plane has run before, and its data is not in hosting's data directory"}
		soon(time.Second)
	}

	wish := hc.Annotations[hypershift.HibernatedAnnotation] == "true"
	if wish && !c.wish && c.status != nil {
		c.ordered = now
	}
	c.wish = wish
	h.mu.Lock()
	p := power{Hibernated: wish, Ordered: c.ordered, Born: rec.Born, Running: v.PID != 0, Ready: v.Ready,
		Asked: c.asked, Closed: c.shut}
	waiting := c.waiting
	h.mu.Unlock()
	p.Closed = p.Closed && h.o.Routes.Settled()
	p.Open, p.Last = h.o.Routes.Activity(name)
	if waiting > 0 {
		p.Open, p.Asked = p.Open+waiting, now
	}
	d := p.decide(now, h.o.Idle)

	h.mu.Lock()
	if p.Running && !d.Run && (c.waiting > 0 || c.asked.After(p.Asked)) { // somebody came meanwhile
		d = powerDecision{State: goingToSleep, Run: true, Shut: true, Again: settlePace}
	}
	soon(d.Again)
	o.Power = d.State
	t.Run = d.Run && t.Release != "" && !missing
	c.resting = c.resting || !t.Run // until steer has said otherwise
	c.route = router.Route{ServerName: name, Asleep: d.Shut}
	if rec.Port != 0 {
		c.route.Backend = address(rec.Port)
	}
	if len(rec.Hosts) == 0 && t.Release == "" {
		c.route = router.Route{} // there was never a plane
	}
	if !c.route.Asleep {
		c.shut = false
	}
	h.mu.Unlock()
	return t, again
}

// settle lets those who wait for a plane have it, once its runner knows that it
// is to run.
func (h *Hosting) settle(c *cluster, t target) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.resting && t.Run {
		c.resting = false
		h.stir()
	}
}

// claimName takes a server name for a cluster, and returns whose it is. The
// cluster keeps the names that its plane bears, and no others.
func (h *Hosting) claimName(key loop.Key, name string, borne []string) loop.Key {
	h.mu.Lock()
	defer h.mu.Unlock()
	if holder, ok := h.names[name]; ok && holder != key {
		return holder
	}
	for n, holder := range h.names {
		if holder == key && n != name && !slices.Contains(borne, n) {
			delete(h.names, n)
		}
	}
	h.names[name] = key
	return key
}

func (h *Hosting) addFinalizer(ctx context.Context, object *unstructured.Unstructured) error {
	if slices.Contains(object.GetFinalizers(), finalizer) {
		return nil
	}
	return h.setFinalizers(ctx, object, append(object.GetFinalizers(), finalizer))
}

// setFinalizers changes the list as it was seen, or fails; with NotFound when
// there is no such object any more.
func (h *Hosting) setFinalizers(ctx context.Context, object *unstructured.Unstructured, list []string) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": object.GetResourceVersion(),
		"finalizers": list}})
	if err != nil {
		return err
	}
	_, err = h.o.Client.Resource(hypershift.HostedClusters()).Namespace(object.GetNamespace()).Patch(
		ctx, object.GetName(), types.MergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("finalizers of HostedCluster %s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	return nil
}

// writeStatus patches the status when it differs from what the cluster has.
func (h *Hosting) writeStatus(ctx context.Context, c *cluster, hc *hypershift.HostedCluster, o observation,
	now time.Time) error {
	before := hc.Status
	if c.status != nil {
		before = *c.status
	}
	after := decideStatus(before, o, now)
	had, err := json.Marshal(hc.Status)
	if err != nil {
		return err
	}
	want, err := json.Marshal(after)
	if err != nil {
		return err
	}
	if bytes.Equal(had, want) {
		c.status = &after
		return nil
	}
	body := slices.Concat([]byte(`{"status":`), want, []byte(`}`))
	_, err = h.o.Client.Resource(hypershift.HostedClusters()).Namespace(hc.Namespace).Patch(ctx, hc.Name,
		types.MergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("status of HostedCluster %s/%s: %w", hc.Namespace, hc.Name, err)
	}
	c.status = &after
	return nil
}

// finalize leaves nothing of a plane behind, and then lets the HostedCluster
// go. It comes back until that is so.
func (h *Hosting) finalize(ctx, calls context.Context, key loop.Key, object *unstructured.Unstructured) error {
	if !slices.Contains(object.GetFinalizers(), finalizer) {
		return nil // it waits for others
	}
	c, err := h.cluster(key)
	if err != nil { // its record cannot be read, which goes with all the rest
		return errors.Join(err, os.Remove(recordPath(h.home.plane(key))))
	}
	if !c.swept {
		if err := h.deleteParts(calls, key); err != nil {
			return err
		}
		c.swept = true
	}
	h.steer(ctx, c, target{Discard: true})
	if !c.runner.view().Discarded {
		return nil // the runner says when it is
	}
	if err := h.drop(key, c); err != nil {
		return err
	}
	if err := h.deleteSecret(calls, key); err != nil {
		return err
	}
	h.o.Log.Info("plane deleted", "plane", key.String())
	err = h.setFinalizers(calls, object, slices.DeleteFunc(object.GetFinalizers(), func(f string) bool {
		return f == finalizer
	}))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// drop deletes a plane whose runner has ended its process, and forgets it.
func (h *Hosting) drop(key loop.Key, c *cluster) error {
	if !c.runner.view().Discarded {
		return nil // the runner says when it is
	}
	c.cancel()
	<-c.runner.done
	if err := h.home.remove(key); err != nil {
		return fmt.Errorf("deleting the data of %s: %w", key, err)
	}
	h.mu.Lock()
	delete(h.hosted, key)
	for name, holder := range h.names {
		if holder == key {
			delete(h.names, name)
		}
	}
	h.mu.Unlock()
	h.ports.release(key)
	h.publish()
	return nil
}

// looked notes that a HostedCluster has been looked at, with whatever outcome,
// and publishes the routes when it was the last.
func (h *Hosting) looked(key loop.Key) {
	h.mu.Lock()
	_, before := h.seen[key]
	h.seen[key] = struct{}{}
	h.mu.Unlock()
	if !before {
		h.publish()
	}
}

// deleteParts deletes what belongs to a cluster that goes: node pools, as
// HyperShift does, and credentials.
func (h *Hosting) deleteParts(ctx context.Context, key loop.Key) error {
	for _, gvr := range []schema.GroupVersionResource{hypershift.NodePools(), apihosting.Credentials()} {
		c := h.o.Client.Resource(gvr).Namespace(key.Namespace)
		list, err := c.List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("%s of %s: %w", gvr.Resource, key, err)
		}
		for _, part := range list.Items {
			if name, _, _ := unstructured.NestedString(part.Object, "spec", "clusterName"); name != key.Name {
				continue
			}
			if err := c.Delete(ctx, part.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s %s/%s: %w", gvr.Resource, key.Namespace, part.GetName(), err)
			}
		}
	}
	return nil
}
