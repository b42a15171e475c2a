package hosting

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/memory"
)

// arrivals are Routes with a new connection at each read of their activity.
type arrivals struct {
	noRoutes
	come func()
}

func (a arrivals) Activity(string) (int, time.Time) {
	a.come()
	return 0, time.Time{}
}

// lone is a hosting without a management cluster: the test gives orders for the
// cluster clusters-a/hc-a by itself. Its planes are in memory and its runtime has only
// the release 1.36.3, although the catalogue names 1.36.4, too.
type lone struct {
	*testing.T
	ctx     context.Context
	h       *Hosting
	machine *memory.Machine
	c       *hostedCluster
	hc      *hypershift.HostedCluster
	come    func() // called while an order gathers its situation
	changes chan struct{}
}

func newDetachedCluster(t *testing.T) *lone {
	t.Helper()
	l := &lone{
		T: t, machine: memory.NewMachine(), come: func() {}, changes: make(chan struct{}, 1),
		hc: &hypershift.HostedCluster{},
	}
	t.Cleanup(l.machine.Close)
	var err error
	l.h, err = New(Options{
		Planes: memory.New(l.machine, "1.36.3"), Releases: Releases{"1.36.3", "1.36.4"}, Advertise: "127.0.0.1:1",
		Routes: arrivals{come: func() { l.come() }}, Idle: time.Nanosecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	closePlanes, err := l.h.o.Planes.Open(ctx, func(id controlplane.ID) {
		l.h.planeChanged(id)
		select {
		case l.changes <- struct{}{}:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); closePlanes() })
	l.ctx = ctx
	l.c = l.h.cluster(controlplane.ID{Namespace: "clusters-a", Name: "hc-a"})
	l.hc.Name, l.hc.Namespace = l.c.id.Name, l.c.id.Namespace
	l.hc.Spec.KubeAPIServerDNSName, l.hc.Spec.Release.Image = "a.example", cluster.ReleaseImage("1.36.3")
	return l
}

func (l *lone) observe() controlplane.Observation {
	l.Helper()
	o, err := l.h.o.Planes.Observe(l.c.id)
	if err != nil {
		l.Fatal(err)
	}
	return o
}

// await waits until the plane is in a state.
func (l *lone) await(want controlplane.State) {
	l.Helper()
	for l.observe().State != want {
		<-l.changes
	}
}

// order decides and orders when the plane was unused for a minute.
func (l *lone) order() decision {
	l.Helper()
	l.h.mu.Lock()
	l.c.routeClosed = true
	l.h.mu.Unlock()
	d, err := l.h.decideAndOrder(l.c, l.hc, nil, nil, time.Now().Add(time.Minute))
	if err != nil {
		l.Fatal(err)
	}
	return d
}

// run starts the plane, and orders its hibernation when its kubeconfig is written.
func (l *lone) run() {
	l.Helper()
	l.order()
	l.await(controlplane.Ready)
	l.hc.Status.KubeConfig = &hypershift.LocalObject{Name: "hc-a-admin-kubeconfig"}
	l.hc.Annotations = map[string]string{hypershift.HibernatedAnnotation: "true"}
}

// wake calls WakeServer, and returns when the call is counted as a use of the plane.
// The text in the channel is the call's result.
func (l *lone) wake(ctx context.Context) <-chan string {
	l.Helper()
	woken := make(chan string, 1)
	go func() {
		backend, err := l.h.WakeServer(ctx, "a.example")
		woken <- fmt.Sprint(backend, err)
	}()
	for waits := 0; waits == 0; runtime.Gosched() {
		l.h.mu.Lock()
		waits = l.c.demand.Waiting
		l.h.mu.Unlock()
		select {
		case got := <-woken:
			l.Fatalf("the call returned while the plane was being stopped: %s", got)
		default:
		}
	}
	return woken
}

// A Wake of a plane that is about to be stopped returns when the plane is kept
// running or runs again; never with the plane that ends.
func TestAWakeNeverGetsAPlaneThatIsBeingStopped(t *testing.T) {
	l := newDetachedCluster(t)
	l.run()
	l.come = func() { l.h.mu.Lock(); l.c.demand.Waiting++; l.h.mu.Unlock() }
	if d := l.order(); !d.Run || l.c.stopping {
		t.Error("it is stopped although a Wake came while that was decided")
	}
	l.come = func() {}
	l.c.demand.Waiting = 0
	l.machine.Pause()
	if d := l.order(); d.Run || !l.c.stopping {
		t.Fatal("it does not go to sleep")
	}
	woken := l.wake(l.ctx)
	l.machine.Resume()
	l.await(controlplane.Down)
	if d := l.order(); !d.Run || l.c.stopping {
		t.Error("it is not woken")
	}
	l.await(controlplane.Ready)
	if got, want := <-woken, fmt.Sprint(l.observe().Backend, nil); got != want {
		t.Errorf("woken: %s, want %s", got, want)
	}
}

// A plane that starts while its stop is decided, and that a Wake has returned, is not
// stopped.
func TestAPlaneThatStartsForAWakeIsNotStopped(t *testing.T) {
	l := newDetachedCluster(t)
	l.run()
	if d := l.order(); d.Run {
		t.Fatal("it does not go to sleep")
	}
	l.await(controlplane.Down)
	l.machine.Pause()
	l.c.demand.Asked = time.Now().Add(2 * time.Minute) // after the order to hibernate, and recent
	if d := l.order(); !d.Run {
		t.Fatal("it is not ordered to run")
	}
	l.c.demand.Asked = time.Now() // long ago, for order
	first := true
	l.come = func() {
		if !first {
			return
		}
		first = false
		l.machine.Resume()
		l.await(controlplane.Ready)
		if err := l.h.Wake(l.ctx, l.c.id); err != nil {
			t.Error(err)
		}
		l.h.mu.Lock()
		defer l.h.mu.Unlock()
		l.c.demand.Asked = time.Now().Add(time.Minute) // order's now
	}
	if d := l.order(); !d.Run || l.c.stopping {
		t.Error("it is stopped although a Wake has just returned it")
	}
}

// A Wake never returns a plane that is being discarded.
func TestAWakeNeverGetsAPlaneThatIsBeingDiscarded(t *testing.T) {
	l := newDetachedCluster(t)
	l.order()
	l.await(controlplane.Ready)
	l.machine.Pause()
	if done, err := l.h.discard(l.c); done || err != nil {
		t.Fatalf("discard: %v, %v", done, err)
	}
	if state := l.observe().State; state != controlplane.Ready {
		t.Fatalf("the plane is %s already", state)
	}
	ctx, cancel := context.WithCancel(l.ctx)
	woken := l.wake(ctx)
	cancel()
	if got := <-woken; got != fmt.Sprint("", fmt.Errorf("waiting for the plane of %s: %w", l.c.id, context.Canceled)) {
		t.Errorf("woken: %s", got)
	}
	l.machine.Resume()
	l.await(controlplane.Down)
	if done, err := l.h.discard(l.c); !done || err != nil {
		t.Errorf("discard: %v, %v", done, err)
	}
}

// The route of a plane never changes to a server name of a spec that the runtime
// refuses.
func TestARefusedSpecNeverChangesTheRoute(t *testing.T) {
	l := newDetachedCluster(t)
	l.order()
	l.await(controlplane.Ready)
	l.order()
	want := l.c.route
	if want.ServerName != "a.example" || want.Backend == "" {
		t.Fatalf("route %+v", want)
	}
	l.hc.Spec.KubeAPIServerDNSName, l.hc.Spec.Release.Image = "b.example", cluster.ReleaseImage("1.36.4")
	begun, err := l.h.decideAndOrder(l.c, l.hc, nil, nil, time.Now())
	if err != nil || l.c.route != want {
		t.Errorf("before the upgrade is in the status: %v; route %+v", err, l.c.route)
	}
	l.hc.Status.Upgrade = begun.Report.Upgrade
	var refused *controlplane.Failure
	if _, err := l.h.decideAndOrder(l.c, l.hc, nil, nil, time.Now()); !errors.As(err, &refused) {
		t.Fatalf("the runtime does not refuse a release that it lacks: %v", err)
	}
	if l.c.route != want {
		t.Errorf("the refused order has changed the route to %+v", l.c.route)
	}
	d, err := l.h.decideAndOrder(l.c, l.hc, nil, refused, time.Now())
	if err != nil || !d.Run || d.Report.Failure != refused || l.c.route != want {
		t.Errorf("after the refusal: %+v, %v; route %+v", d, err, l.c.route)
	}
}

// A HostedCluster that cannot be decoded claims no server name that another cluster
// may want, and keeps the names that it has.
func TestAHostedClusterThatCannotBeDecodedClaimsNoName(t *testing.T) {
	l := newDetachedCluster(t)
	unreadable := errors.New("spec.networking is no object")
	shape := l.h.cluster(controlplane.ID{Namespace: "clusters-shape", Name: "hc-shape"})
	hc := metadataOf(&unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": shape.id.Name, "namespace": shape.id.Namespace},
	}})
	if d, err := l.h.decideAndOrder(shape, hc, unreadable, nil, time.Now()); err != nil || d.Run {
		t.Fatalf("%+v, %v", d, err)
	}
	l.hc.Spec.KubeAPIServerDNSName = apihosting.ServerName(shape.id.Name)
	if d := l.order(); len(d.Report.Problems) > 0 || !d.Run {
		t.Errorf("another cluster with that name: %v", d.Report.Problems)
	}
	if d, err := l.h.decideAndOrder(l.c, metadataOf(&unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": l.c.id.Name, "namespace": l.c.id.Namespace},
	}}), unreadable, nil, time.Now()); err != nil || d.Report.Power != awake {
		t.Fatalf("%+v, %v", d, err)
	}
	if holder := l.h.names[apihosting.ServerName(shape.id.Name)]; holder != l.c.id {
		t.Errorf("the name is %q's", holder)
	}
}
