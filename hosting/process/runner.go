package process

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/pause"
	"atoll.dev/plane"
)

const (
	stopLimit    = 10 * time.Second // after SIGTERM, before SIGKILL
	steadyAfter  = time.Minute      // a plane that was ready for so long begins its back-off anew
	maxOpenFiles = 16384
	memoryLimit  = 1 << 30 // soft, of a plane without a size: Go's collector aims at it
)

// action is the next step of a runner with its plane.
type action int

const (
	sleep   action = iota // stop it and keep its data
	run                   // start it and keep it running
	discard               // kill it; its data will be deleted
)

// goal is a runner's order.
type goal struct {
	action action
	spec   controlplane.Spec // of action run
}

// equal reports whether a runner that pursues g need not begin anew for other. Another number of nodes is no reason:
// the next measurement reads it. A runner that began anew for it would forget for how long the plane is unhealthy, and
// a customer who changes replicas often would keep a plane that hangs.
func (g goal) equal(other goal) bool {
	return g.action == other.action && g.spec.Copy == other.spec.Copy && g.spec.Equal(other.spec) &&
		g.spec.Size == other.spec.Size
}

// runner owns a plane's process: it starts, adopts, watches, restarts and stops
// it, as its goal requires. It leaves the process running when its context ends.
type runner struct {
	runtime *Runtime
	id      controlplane.ID
	slot    controlplane.ID // see slotOf
	dir     string          // of the plane
	state   string          // directory of what the runtime keeps about the plane
	log     *slog.Logger
	poke    chan struct{} // holds one after a change of the goal
	done    chan struct{} // closed when run has returned

	cancel context.CancelFunc // of run; nil before it; guarded by Runtime.mu

	mu        sync.Mutex
	goal      goal
	seen      controlplane.Observation
	discarded bool // no process exists, and none will be started

	// Of the goroutine of run.
	process   *plane.Process
	record    record
	shownPID  int // of the process that seen describes
	failures  int // consecutive, of the release failed
	failed    controlplane.Version
	portTaken bool
	holdsSlot bool   // a place of Runtime.starts
	inGroup   bool   // the process is in the plane's control group
	accepted  Limits // of the control group: the last ones that the kernel has accepted
	refused   error  // why the kernel has not accepted the plane's limits; nil: it has, or has not been asked
	killed    int    // processes of the group that the kernel had ended before this one
	need      cluster.SizeNeed
}

// newRunner reads the record of an earlier runtime. It does nothing else before run.
func newRunner(r *Runtime, id controlplane.ID) (*runner, error) {
	slot, err := r.home.slotOf(id)
	if err != nil {
		return nil, err
	}
	dir, state := r.home.slotDir(slot), r.home.state(id)
	record, err := readRecord(state)
	if err != nil {
		return nil, fmt.Errorf("plane %s: %w", id, err)
	}
	if record.Port != 0 && !r.ports.claim(slot, record.Port) {
		record.Port = 0
	}
	x := &runner{
		runtime: r, id: id, slot: slot, dir: dir, state: state, log: r.o.Log.With("plane", id.String()), record: record,
		poke: make(chan struct{}, 1), done: make(chan struct{}), need: cluster.SizeNeed{Wanted: record.Wanted},
	}
	x.seen = controlplane.Observation{State: controlplane.Down, LastStart: record.lastStart(), Backend: record.backend(),
		Size: x.sizeState()}
	if pid, ok := plane.Running(dir); ok || plane.Alive(dir) {
		x.shownPID = pid
		x.seen.State, x.seen.Running, x.seen.Unconfirmed = controlplane.Starting, true, true
	}
	return x, nil
}

// isCustomers reports whether the plane is a customer's: neither a scratch plane nor a warm one.
func (x *runner) isCustomers() bool { return !x.id.IsScratch() && !x.id.IsWarm() }

// set gives the runner a goal.
func (x *runner) set(g goal) {
	x.mu.Lock()
	same := x.goal.equal(g)
	x.goal = g
	x.mu.Unlock()
	if !same {
		select {
		case x.poke <- struct{}{}:
		default:
		}
	}
}

func (x *runner) currentGoal() goal {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.goal
}

// begin returns the goal that the runner now pursues. A ready plane that should
// stop is shown as stopping in the same step, so that no caller who changes the
// goal back finds a plane ready that is about to stop.
func (x *runner) begin() goal {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.goal.action != run && x.seen.State == controlplane.Ready {
		x.seen.State = controlplane.Stopping
	}
	return x.goal
}

func (x *runner) observation() controlplane.Observation {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.seen
}

func (x *runner) hasDiscarded() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.discarded
}

// updateObservation changes the observation and notifies the user of the runtime.
func (x *runner) updateObservation(change func(*controlplane.Observation)) {
	x.mu.Lock()
	change(&x.seen)
	x.seen.LastStart, x.seen.Backend, x.seen.Size = x.record.lastStart(), x.record.backend(), x.sizeState()
	x.mu.Unlock()
	x.runtime.notify(x.id)
}

// run pursues the goal until ctx ends.
func (x *runner) run(ctx context.Context) {
	defer close(x.done)
	defer func() {
		if x.process != nil {
			x.process.Leave()
		}
	}()
	for ctx.Err() == nil {
		g := x.begin()
		var err error
		if g.action == run {
			err = x.serve(ctx, g)
		} else if err = x.halt(ctx, g.action); err == nil {
			x.showDown(g.action)
			pause.ForWake(ctx, x.poke, 0)
		}
		if err != nil && ctx.Err() == nil {
			pause.ForWake(ctx, x.poke, x.fail(err, g))
		}
	}
}

// showDown shows that no process exists.
func (x *runner) showDown(a action) {
	x.mu.Lock()
	x.discarded = a == discard
	x.mu.Unlock()
	x.shownPID = 0
	x.updateObservation(func(o *controlplane.Observation) { *o = controlplane.Observation{State: controlplane.Down} })
}

// fail shows a failure in the pursuit of g and returns the time until the next start; never 0. Another release begins
// its count anew.
func (x *runner) fail(err error, g goal) time.Duration {
	before := x.observation()
	if x.failed != g.spec.Release {
		x.failed, x.failures = g.spec.Release, 0
	}
	if !before.ReadySince.IsZero() && time.Since(before.ReadySince) > steadyAfter {
		x.failures = 0
	}
	x.failures++
	f := newFailure(err)
	f.Count, f.Release = x.failures, g.spec.Release
	x.portTaken = x.portTaken || f.Reason == controlplane.PortTaken
	x.log.Warn("a plane failed and is started again", "reason", f.Reason, "failures", f.Count, "error", err)
	if x.isCustomers() {
		x.runtime.metrics.failures.WithLabelValues(string(f.Reason)).Inc()
	}
	x.shownPID = 0
	x.updateObservation(func(o *controlplane.Observation) {
		*o = controlplane.Observation{State: controlplane.Failing, Failure: f}
	})
	return max(backoff(f), time.Millisecond)
}

// serve keeps the plane running as g requires. It returns nil when the goal changes
// or ctx ends, and an error when the plane fails.
func (x *runner) serve(ctx context.Context, g goal) error {
	if err := x.adopt(ctx); err != nil {
		return err
	}
	if err := x.nameRecord(g.spec.ServerNames); err != nil {
		return err
	}
	if x.process != nil && !x.record.follows(g.spec) {
		if err := x.halt(ctx, sleep); err != nil {
			return err
		}
	}
	if err := x.applySize(g.spec.Size); err != nil {
		return err
	}
	defer x.releaseSlot()
	if x.process == nil {
		if !x.acquireSlot(ctx, g) {
			return nil
		}
		if err := x.launch(ctx, g.spec); err != nil {
			return err
		}
	}
	if err := x.dropCopy(g.spec.Copy); err != nil {
		x.log.Warn("the copy of a plane's data could not be removed", "error", err)
	}
	return x.watch(ctx, g)
}

// acquireSlot waits for a place among the planes that start: many planes that
// start at once only slow each other down. It returns false when the goal
// changed before. A plane that is no customer's takes no place: no customer's plane waits for it.
func (x *runner) acquireSlot(ctx context.Context, g goal) bool {
	if !x.isCustomers() {
		return true
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-x.poke:
			if !x.currentGoal().equal(g) {
				return false
			}
		case x.runtime.starts <- struct{}{}:
			x.holdsSlot = true
			return true
		}
	}
}

func (x *runner) releaseSlot() {
	if x.holdsSlot {
		x.holdsSlot = false
		<-x.runtime.starts
	}
}

// halt ends the process, if there is one, and what it has left behind. It goes on when ctx ends: a plane is
// never left half stopped.
func (x *runner) halt(ctx context.Context, a action) error {
	if err := x.adopt(ctx); err != nil {
		return err
	}
	if x.process == nil {
		return x.endRest()
	}
	x.updateObservation(func(o *controlplane.Observation) {
		o.State, o.Running, o.ReadySince, o.Unconfirmed = controlplane.Stopping, true, time.Time{}, false
	})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	begun := time.Now()
	stop := x.process.Stop
	if a == discard {
		stop = func(context.Context) error { return x.process.Kill() }
	}
	if err := stop(ctx); err != nil {
		return err
	}
	x.log.Info("plane stopped", "pid", x.process.PID, "took", time.Since(begun))
	x.process = nil
	if err := x.endRest(); err != nil {
		return err
	}
	if g, ok := x.runtime.group(x.slot); ok {
		g.remove()
	}
	return nil
}
