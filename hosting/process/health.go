package process

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/plane"
)

const (
	startLimit = 3 * time.Minute  // until a plane is ready, on a machine that starts many
	slotLimit  = 15 * time.Second // a slow start holds its place among the starting planes for so long
)

// watch watches the process until it ends (an error), hangs (an error), the goal
// changes or ctx ends (nil).
func (x *runner) watch(ctx context.Context, g goal) error {
	p := x.process
	begun := time.Now()
	x.showStarted(p)
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	ready := make(chan error, 1)
	go func() { ready <- p.Wait(watching) }()
	answers := make(chan answer, 1)
	probes := x.runtime.o.Probes
	probe := time.NewTimer(probes.Every)
	defer probe.Stop()
	slow := time.After(slotLimit)
	var h health
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-x.poke:
			if !x.currentGoal().equal(g) {
				return nil
			}
		case <-p.Exited():
			x.process = nil
			cause := x.exited(p)
			if err := x.endRest(); err != nil {
				return errors.Join(cause, err)
			}
			return cause
		case err := <-ready:
			if err != nil {
				continue // the process has ended, or ctx has
			}
			x.releaseSlot()
			if err := x.markReady(p, begun); err != nil {
				return err
			}
		case <-slow:
			x.releaseSlot()
			if x.observation().Unconfirmed {
				x.updateObservation(func(o *controlplane.Observation) { o.Unconfirmed = false })
			}
		case <-probe.C:
			if err := boundLog(logPath(x.state)); err != nil {
				x.log.Warn("a plane's log could not be cut", "error", err)
			}
			if x.observation().ReadySince.IsZero() {
				if time.Since(begun) > startLimit {
					return x.kill(fmt.Errorf("%w: it was not ready after %s", errHangs, startLimit))
				}
				probe.Reset(probes.Every)
				continue
			}
			go func() { answers <- probePlane(watching, p.Config, probes.Limit) }()
		case a := <-answers:
			var v verdict
			h, v = h.judge(a.failing, time.Now(), probes)
			if v.hangs {
				return x.kill(fmt.Errorf("%w: not well for %s: %v", errHangs, probes.HangLimit, a.failing))
			}
			x.showHealth(v.failing)
			if len(a.failing) == 0 {
				x.showStore(a.store)
				if current := x.currentGoal(); current.equal(g) {
					g = current // it has the present number of nodes
				}
				if err := x.measure(p, g.spec, time.Now()); err != nil {
					x.log.Warn("the size of a plane could not be changed; it is tried again", "error", err)
				}
			}
			probe.Reset(v.probeAfter)
		}
	}
}

// showStarted publishes that a process runs. A process that it published before keeps
// its state until the plane is ready.
func (x *runner) showStarted(p *plane.Process) {
	x.updateObservation(func(o *controlplane.Observation) {
		if x.shownPID != p.PID {
			*o = controlplane.Observation{State: controlplane.Starting, Failure: o.Failure}
		}
		o.Running = true
	})
	x.shownPID = p.PID
}

// markReady records that the plane is ready and shows it.
func (x *runner) markReady(p *plane.Process, begun time.Time) error {
	if !p.Adopted && x.isCustomers() && x.observation().ReadySince.IsZero() {
		x.runtime.metrics.starts.Observe(time.Since(begun).Seconds())
	}
	if !x.record.WasReady || x.record.Served != x.record.Release {
		next := x.record
		next.WasReady, next.Served = true, next.Release
		if err := next.write(x.state); err != nil {
			return err
		}
		x.record = next
	}
	standing := x.standingWalls(p)
	if missing := missingWalls(standing); missing != "" && x.observation().ReadySince.IsZero() {
		x.log.Warn("not all walls stand around a plane", "missing", missing)
	}
	x.updateObservation(func(o *controlplane.Observation) {
		if o.ReadySince.IsZero() {
			o.ReadySince = time.Now()
		}
		o.Walls = standing
		o.State, o.FailingParts, o.Failure, o.Unconfirmed = controlplane.Ready, nil, nil, false
	})
	return nil
}

// showHealth shows which parts of a plane that was ready fail.
func (x *runner) showHealth(failing []string) {
	if slices.Equal(x.observation().FailingParts, failing) {
		return
	}
	x.log.Info("a plane's health changed", "failing", failing)
	x.updateObservation(func(o *controlplane.Observation) {
		o.FailingParts, o.State = failing, controlplane.Ready
		if len(failing) > 0 {
			o.State = controlplane.Unready
		}
	})
}

// showStore shows whether etcd is full or damaged.
func (x *runner) showStore(s controlplane.StoreState) {
	if x.observation().Store == s {
		return
	}
	x.log.Warn("the state of a plane's etcd changed", "full", s.Full, "corrupt", s.Corrupt, "quota", s.Quota)
	x.updateObservation(func(o *controlplane.Observation) { o.Store = s })
}

// answer is the answer of a plane to a probe.
type answer struct {
	failing []string                // parts
	store   controlplane.StoreState // of a plane without failing parts
}

// probePlane asks a plane for its failing parts and, only if there are none, for the state of its etcd: the verdict on
// a plane that hangs must not wait for a second answer.
func probePlane(ctx context.Context, c plane.Config, limit time.Duration) answer {
	a := answer{failing: failingParts(ctx, c, limit)}
	if len(a.failing) == 0 {
		a.store = storeState(ctx, c, limit)
	}
	return a
}

// storeState asks a plane's etcd for its state. It returns the zero value for an etcd that does not answer: the plane's
// health shows that fault.
func storeState(ctx context.Context, c plane.Config, limit time.Duration) controlplane.StoreState {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s, err := c.StoreStatus(ctx)
	if err != nil || !s.Full && !s.Corrupt {
		return controlplane.StoreState{}
	}
	return controlplane.StoreState{Full: s.Full, Corrupt: s.Corrupt, Quota: s.Quota}
}

// failingParts asks a plane for its health: no parts when all are well, and
// controlplane.APIServer when it does not answer within limit.
func failingParts(ctx context.Context, c plane.Config, limit time.Duration) []string {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	failing, err := c.Health(ctx)
	if err != nil {
		return []string{controlplane.APIServer}
	}
	return failing
}

// health is the history of a ready plane's probes, as far as it matters. The
// zero value is that of a healthy plane.
type health struct {
	failingSince time.Time // first of the consecutive failed probes; zero: the last probe was good
	shown        []string  // the parts that the last verdict showed as failing
}

// verdict is the consequence of a probe.
type verdict struct {
	failing    []string      // to be shown
	hangs      bool          // the runner must restart the plane
	probeAfter time.Duration // until the next probe
}

// judge decides what one probe means. One probe without an answer shows nothing:
// a machine may be busy for some seconds, and a cluster that is called
// unavailable for that long costs its customer an alarm. The second in a row
// does. A plane that answers which part fails is believed at once. After a
// failed probe the next comes soon, so that a short failure is shown shortly.
func (h health) judge(failing []string, now time.Time, p Probes) (health, verdict) {
	if len(failing) == 0 {
		return health{}, verdict{probeAfter: p.Every}
	}
	first := h.failingSince.IsZero()
	if first {
		h.failingSince = now
	}
	if now.Sub(h.failingSince) > p.HangLimit {
		return health{}, verdict{hangs: true}
	}
	unanswered := slices.Equal(failing, []string{controlplane.APIServer})
	if !first || !unanswered {
		h.shown = failing
	}
	return h, verdict{failing: h.shown, probeAfter: p.Retry}
}
