package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/atomicfile"
)

// errPlaneExists is the error of giveState for a cluster whose plane has a data directory already.
var errPlaneExists = errors.New("the cluster's plane has a data directory")

// giveState makes a warm plane that of a cluster, by one rename of its state. So after a crash at any instant the plane
// is warm or the cluster's and never both, and two clusters cannot get one plane (I12). When giveState returns nil, the
// rename is on the disk: a plane that has a customer's data never becomes warm again. After an error the plane is warm,
// unless the disk fails twice.
func (h home) giveState(warm, id controlplane.ID) error {
	if hasData, err := exists(h.slotDir(id)); err != nil || hasData {
		return errors.Join(err, errPlaneExists)
	}
	from, to := h.state(warm), h.state(id)
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	if err := atomicfile.SyncDir(filepath.Join(h.dir, stateName)); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil { // for example, the state of the cluster has a file
		return err
	}
	err := errors.Join(atomicfile.SyncDir(filepath.Dir(to)), atomicfile.SyncDir(filepath.Dir(from)))
	if err != nil { // the rename back need not be on the disk: the next runtime finds the plane on either side
		return errors.Join(err, os.Rename(to, from))
	}
	return nil
}

// giveWarm gives a warm plane to a cluster whose plane never started, when one is ready that is as spec requires, and
// returns the cluster's runner. Without such a plane nothing changes. The runner that it returns adopts the process as
// after a restart of the runtime.
func (r *Runtime) giveWarm(x *runner, spec controlplane.Spec) (*runner, error) {
	if !x.isUnstarted() {
		return x, nil
	}
	r.pool.recordBusy(time.Now())
	if r.o.Warm.Planes == 0 {
		return x, nil
	}
	if !r.o.Warm.fits(spec) {
		r.metrics.firstStarts.WithLabelValues(startUnfit).Inc()
		return x, nil
	}
	warm, ok := r.takeWarm()
	if !ok {
		r.metrics.firstStarts.WithLabelValues(startMissed).Inc()
		return x, nil
	}
	r.endRunner(warm)
	r.endRunner(x) // it has waited for an order
	// An ended runner starts nothing any more: when replaceRunner fails below, the next call makes a new one.
	r.forgetRunner(warm.id)
	r.forgetRunner(x.id)
	if err := r.home.giveState(warm.id, x.id); err != nil {
		r.o.Log.Warn("a cluster gets no warm plane; its plane is started", "plane", x.id.String(), "error", err)
		r.metrics.firstStarts.WithLabelValues(startMissed).Inc()
		r.returnToPool(warm.id)
	} else {
		r.metrics.firstStarts.WithLabelValues(startGiven).Inc()
	}
	next, err := r.replaceRunner(x.id)
	if err == nil && next.slot != x.slot {
		r.o.Log.Info("a cluster gets a warm plane", "plane", x.id.String(), "slot", next.slot.String())
	}
	return next, err
}

// returnToPool puts a plane back into the pool after giveState has failed. A plane that cannot be used again is
// deleted. When the disk does not answer whether the plane is warm, nothing is done: the next runtime looks again.
func (r *Runtime) returnToPool(id controlplane.ID) {
	isWarm, err := exists(r.home.state(id))
	if err == nil && isWarm {
		if err = r.returnWarm(id); err != nil {
			r.pool.mu.Lock()
			r.pool.planes[id] = warmPlane{ID: id, MustEnd: true}
			r.pool.mu.Unlock()
		}
	}
	if err != nil {
		r.o.Log.Warn("a warm plane cannot be used again", "plane", id.String(), "error", err)
	}
}

// isUnstarted reports whether the plane was never ordered to run, and nothing of it is known.
func (x *runner) isUnstarted() bool {
	o := x.observation()
	return x.isCustomers() && x.currentGoal().action != run && !o.Running && o.LastStart.Release == "" && o.Failure == nil
}

// endRunner ends a runner, if it runs. The plane's process goes on.
func (r *Runtime) endRunner(x *runner) {
	r.mu.Lock()
	cancel := x.cancel
	r.mu.Unlock()
	if cancel != nil {
		cancel()
		<-x.done
	}
}

// forgetRunner removes a runner that has ended.
func (r *Runtime) forgetRunner(id controlplane.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.runners, id)
}

// replaceRunner makes a runner from what is on the disk, in place of one that has ended.
func (r *Runtime) replaceRunner(id controlplane.ID) (*runner, error) {
	x, err := newRunner(r, id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runners[id] = x
	return x, nil
}

// nameRecord puts a cluster's server names into the record of a plane that was warm, before anything else is done with
// the plane. From then on the plane is one that was started for the cluster and was not ready yet. A process whose
// certificate does not cover the names does not follow them, and is replaced.
func (x *runner) nameRecord(names []string) error {
	if x.id.IsWarm() || !x.record.isUnnamed() || len(names) == 0 {
		return nil
	}
	next := x.record
	if next.Hosts = nil; coversAll(x.record.Hosts, names) {
		next.Hosts = names
	}
	next.WasReady, next.Served = false, ""
	if err := next.write(x.state); err != nil {
		return fmt.Errorf("naming a plane that was warm: %w", err)
	}
	x.record = next
	return nil
}

func isWildcard(name string) bool { return strings.HasPrefix(name, "*.") }

// coversAll reports whether a certificate for hosts is valid for each name. A wildcard stands for one label.
func coversAll(hosts, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		_, parent, _ := strings.Cut(name, ".")
		return !slices.Contains(hosts, name) && !slices.Contains(hosts, "*."+parent)
	})
}
