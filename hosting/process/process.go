// Package process is the runtime of control planes for one machine: each plane
// is one atoll-kube process with a data directory of its own.
//
// A plane's process outlives the runtime that started it; the next runtime in
// the same directory adopts it. One goroutine, the runner, owns a plane's
// process; the methods of Runtime set the runner's goal and return at once.
//
// cli gives a Runtime to hosting. It must pass the suite of package runtimetest.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/hosting/controlplane"
)

// Options describe a Runtime. Dir and Binaries are required.
type Options struct {
	Dir      string                          // of all planes' data; made when missing
	Binaries map[controlplane.Version]string // releases that can run, and the path of atoll-kube of each

	// EtcdQuota is the size of a plane's etcd in bytes at which it refuses writes, from the plane's next start on;
	// default atoll-kube's own.
	EtcdQuota int64

	// Limits bound each plane without a size, and Limits.Memory those of the largest size; smaller ones have no more.
	// Default: 4 GiB of memory, 4096 threads, weight 100. They hold where this process may make control groups.
	Limits Limits

	FirstPort, LastPort int // of the planes, on loopback; default 30000 to 32767
	Starts              int // planes that start at once; default two for each processor
	Probes              Probes
	Warm                Warm // default: there are no warm planes

	Log     *slog.Logger          // default: none
	Metrics prometheus.Registerer // default: none
}

// Probes is how often a ready plane's health is probed. The zero value means the
// defaults; a plane's end is noticed without a probe.
type Probes struct {
	Every     time.Duration // between probes of a healthy plane; default 15 s
	Retry     time.Duration // after a failed probe; default 1 s
	Limit     time.Duration // for an answer; default 5 s
	HangLimit time.Duration // a plane that fails its probes for longer is restarted; default 3 min
}

func (p Probes) withDefaults() Probes {
	return Probes{
		Every: cmp.Or(p.Every, 15*time.Second), Retry: cmp.Or(p.Retry, time.Second),
		Limit: cmp.Or(p.Limit, 5*time.Second), HangLimit: cmp.Or(p.HangLimit, 3*time.Minute),
	}
}

// Runtime runs planes as processes. Use New. Several goroutines may call its methods,
// but only one goroutine at a time may change the same plane.
type Runtime struct {
	o       Options
	home    home
	ports   *ports
	starts  chan struct{} // a starting plane holds a place until it is ready or slow
	metrics *metrics
	walls   walls
	users   users
	cgroups *cgroups // nil: none can be made
	pool    *pool    // of warm planes

	mu      sync.Mutex
	ctx     context.Context // of Open: the runners end with it
	changed func(controlplane.ID)
	runners map[controlplane.ID]*runner
	running sync.WaitGroup // runners
}

// New checks the options. Nothing happens before Open.
func New(o Options) (*Runtime, error) {
	if o.Dir == "" {
		return nil, errors.New("the process runtime needs a data directory")
	}
	if o.FirstPort == 0 {
		o.FirstPort, o.LastPort = firstPort, lastPort
	}
	if o.Starts == 0 {
		o.Starts = 2 * runtime.NumCPU()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Probes = o.Probes.withDefaults()
	o.Limits = withDefaults(o.Limits)
	if o.Warm.Memory == nil {
		o.Warm.Memory = func() (int64, error) { return math.MaxInt64, nil }
	}
	r := &Runtime{
		o: o, home: home{o.Dir}, starts: make(chan struct{}, o.Starts),
		ports:   &ports{first: o.FirstPort, last: o.LastPort, taken: map[int]controlplane.ID{}},
		runners: map[controlplane.ID]*runner{}, pool: newPool(),
	}
	r.metrics = newMetrics(o.Metrics, r.countWarm)
	return r, nil
}

// Open locks the data directory for this runtime and reserves the ports of the
// planes in it. It fails when another runtime has the directory. Planes are
// started and watched until ctx ends; then they run on, unwatched. close waits
// for the runners and releases the directory; ctx must have ended.
//
// changed is called after each change of a plane's observation. It must not
// block.
func (r *Runtime) Open(ctx context.Context, changed func(controlplane.ID)) (close func(), err error) {
	unlock, err := r.home.lock()
	if err != nil {
		return nil, fmt.Errorf("opening the planes' directory: %w", err)
	}
	if err := r.home.migrate(); err != nil {
		unlock()
		return nil, fmt.Errorf("the planes' directory gets its present form: %w", err)
	}
	r.openCgroups()
	for _, id := range slices.Concat(r.home.planes(), r.home.warmPlanes()) {
		r.claimPlaces(id)
	}
	r.mu.Lock()
	r.ctx, r.changed = ctx, changed
	r.mu.Unlock()
	r.openPool()
	r.running.Go(func() { r.runPool(ctx) })
	return func() {
		r.running.Wait()
		unlock()
	}, nil
}

// claimPlaces reserves the port and the user that a plane had. A damaged record or slot is an error of Observe.
func (r *Runtime) claimPlaces(id controlplane.ID) {
	slot, err := r.home.slotOf(id)
	if err != nil {
		return
	}
	record, err := readRecord(r.home.state(id))
	if err != nil || record.Port == 0 {
		return
	}
	r.ports.claim(slot, record.Port)
	if record.User != 0 {
		r.users.choose(r.o.Dir, slot, record.User)
	}
}

// List returns the planes that have a directory, without warm ones.
func (r *Runtime) List() []controlplane.ID { return r.home.planes() }

// Dir is the data directory of a plane, whether or not it exists. The plane writes there.
func (r *Runtime) Dir(id controlplane.ID) string { return r.home.plane(id) }

// StateDir is the directory of what the runtime keeps about a plane, whether or not it exists.
func (r *Runtime) StateDir(id controlplane.ID) string { return r.home.state(id) }

// Observe returns the last observation of a plane. It returns an error if the plane's record is damaged.
func (r *Runtime) Observe(id controlplane.ID) (controlplane.Observation, error) {
	x, err := r.runner(id)
	if err != nil {
		return controlplane.Observation{}, err
	}
	o := x.observation()
	if !o.Running {
		o.HasData = r.home.hasData(id)
	}
	return o, nil
}

// Ensure has a plane run as spec requires. It returns a *controlplane.Failure, and
// changes nothing, when a plane runs and the program of another release, which
// should replace it, cannot be run. A plane that never started gets a warm plane, if there is one that fits.
func (r *Runtime) Ensure(id controlplane.ID, spec controlplane.Spec) error {
	x, err := r.runner(id)
	if err != nil {
		return err
	}
	now := x.observation()
	if last := now.LastStart.Release; now.Running && last != "" && last != spec.Release {
		if err := checkRunnable(r.o.Binaries[spec.Release]); err != nil {
			return newFailure(err)
		}
	}
	if x, err = r.giveWarm(x, spec); err != nil {
		return err
	}
	return r.pursue(x, goal{action: run, spec: spec})
}

// Sleep stops a plane and keeps its data.
func (r *Runtime) Sleep(id controlplane.ID) error {
	x, err := r.runner(id)
	if err != nil {
		return err
	}
	return r.pursue(x, goal{action: sleep})
}

// Discard ends a plane and deletes its data. It returns false while the process
// ends; changed is called when it has ended.
func (r *Runtime) Discard(id controlplane.ID) (done bool, err error) {
	if _, err := r.home.slotOf(id); err != nil {
		return false, err // nobody knows where the data is
	}
	x, err := r.runner(id)
	if err != nil { // the damaged record is deleted with everything else
		if err := os.Remove(recordPath(r.home.state(id))); err != nil {
			return false, err
		}
		if x, err = r.runner(id); err != nil {
			return false, err
		}
	}
	if err := r.pursue(x, goal{action: discard}); err != nil {
		return false, err
	}
	if !x.hasDiscarded() {
		return false, nil
	}
	x.cancel()
	<-x.done
	if err := r.home.remove(id); err != nil {
		return false, fmt.Errorf("deleting the data of plane %s: %w", id, err)
	}
	r.mu.Lock()
	delete(r.runners, id)
	r.mu.Unlock()
	r.ports.release(x.slot)
	r.users.release(x.slot)
	if g, ok := r.group(x.slot); ok {
		g.remove()
	}
	return true, nil
}

// runner returns a plane's runner. A new one does nothing before pursue.
func (r *Runtime) runner(id controlplane.ID) (*runner, error) {
	if x := r.find(id); x != nil {
		return x, nil
	}
	x, err := newRunner(r, id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if other := r.runners[id]; other != nil {
		return other, nil // another caller was faster
	}
	r.runners[id] = x
	return x, nil
}

// find returns nil for a plane that has no runner.
func (r *Runtime) find(id controlplane.ID) *runner {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runners[id]
}

// pursue sets a runner's goal, and starts the runner with its first goal.
func (r *Runtime) pursue(x *runner, g goal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx == nil {
		return fmt.Errorf("plane %s: the runtime is not open", x.id)
	}
	x.set(g)
	if x.cancel == nil {
		var ctx context.Context
		ctx, x.cancel = context.WithCancel(r.ctx)
		r.running.Go(func() { x.run(ctx) })
	}
	return nil
}

// notify calls the function that Open was given. That of a warm plane wakes the pool instead.
func (r *Runtime) notify(id controlplane.ID) {
	if id.IsWarm() {
		r.pool.poke()
		return
	}
	r.mu.Lock()
	changed := r.changed
	r.mu.Unlock()
	changed(id)
}
