package process

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/pause"
)

// pool has the warm planes of a runtime. The goroutine of runPool starts and deletes them, Ensure takes them.
type pool struct {
	wake chan struct{} // holds a value after a change of a warm plane

	mu     sync.Mutex
	planes map[controlplane.ID]warmPlane // IsReady is not set
	busy   time.Time                     // when a customer's plane was last ordered or started
}

func newPool() *pool {
	return &pool{wake: make(chan struct{}, 1), planes: map[controlplane.ID]warmPlane{}}
}

func (p *pool) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// recordBusy records that a customer's plane is ordered or starts.
func (p *pool) recordBusy(now time.Time) {
	p.mu.Lock()
	p.busy = now
	p.mu.Unlock()
}

// warmPlanes lists the warm planes that have a state.
func (h home) warmPlanes() (ids []controlplane.ID) {
	entries, _ := os.ReadDir(filepath.Join(h.dir, stateName, controlplane.WarmNamespace))
	for _, e := range entries {
		ids = append(ids, controlplane.ID{Namespace: controlplane.WarmNamespace, Name: e.Name()})
	}
	return ids
}

// openPool reads the warm planes that an earlier runtime has left. Those that do not fit any more, or were not made
// completely, are deleted by runPool. A plane whose slot cannot be read for another reason stays, and nobody gets it.
// openPool logs directories of slots that belong to no plane: they may have the data of a cluster whose state was lost,
// so they stay.
func (r *Runtime) openPool() {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	owned := map[controlplane.ID]bool{}
	for _, id := range r.home.warmPlanes() {
		owned[id] = true
		info, err := os.Stat(filepath.Join(r.home.state(id), slotName))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.o.Log.Warn("a warm plane cannot be used again", "plane", id.String(), "error", err)
			continue
		}
		plane := warmPlane{ID: id, Known: time.Now(), MustEnd: err != nil}
		if err == nil {
			record, err := readRecord(r.home.state(id))
			plane.Made, plane.MustEnd = info.ModTime(), err != nil || !record.isMadeFor(r.o.Warm)
		}
		r.pool.planes[id] = plane
	}
	for _, id := range r.home.planes() {
		if slot, err := r.home.slotOf(id); err == nil {
			owned[slot] = true
		}
	}
	dirs, _ := os.ReadDir(r.home.slotDir(controlplane.ID{Namespace: controlplane.WarmNamespace}))
	for _, d := range dirs {
		if !owned[controlplane.ID{Namespace: controlplane.WarmNamespace, Name: d.Name()}] {
			r.o.Log.Warn("the data directory of a plane belongs to no cluster and stays", "slot", d.Name())
		}
	}
}

// runPool keeps the pool as Options.Warm orders, until ctx ends. When ctx ends, the warm planes continue to run.
func (r *Runtime) runPool(ctx context.Context) {
	for ctx.Err() == nil {
		r.updatePool(ctx, time.Now())
		wait := warmEvery
		if r.o.Warm.Planes == 0 && r.poolIsEmpty() {
			wait = 0 // wait for a wake or the end: nothing comes into the pool any more
		}
		pause.ForWake(ctx, r.pool.wake, wait)
	}
}

func (r *Runtime) poolIsEmpty() bool {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	return len(r.pool.planes) == 0
}

// updatePool decides about the pool once: it deletes warm planes, runs idle ones, and starts at most one.
func (r *Runtime) updatePool(ctx context.Context, now time.Time) {
	if len(r.starts) > 0 {
		r.pool.recordBusy(now)
	}
	s := warmSituation{Wanted: r.o.Warm.wanted(), Memory: -1}
	if r.o.Warm.Planes > 0 {
		var err error
		if s.Memory, err = r.o.Warm.Memory(); err != nil {
			r.o.Log.Warn("no warm plane starts", "error", err)
			s.Memory = -1
		}
	}
	end, start := r.decidePool(s, now)
	for _, id := range end {
		done, err := r.Discard(id)
		if err != nil {
			r.o.Log.Warn("a warm plane could not be deleted; it is tried again", "plane", id.String(), "error", err)
		}
		if done {
			r.pool.mu.Lock()
			delete(r.pool.planes, id)
			r.pool.mu.Unlock()
			r.pool.poke()
		}
	}
	for id := range r.idleWarm() { // of an earlier runtime, or put back by returnWarm
		if err := r.runWarm(id); err != nil {
			r.o.Log.Warn("a warm plane does not run", "plane", id.String(), "error", err)
		}
	}
	if start && ctx.Err() == nil {
		if err := r.startWarm(now); err != nil {
			r.o.Log.Warn("no warm plane starts", "error", err)
		}
	}
}

// decidePool decides about the pool. It records which planes end, so that no cluster gets them.
func (r *Runtime) decidePool(s warmSituation, now time.Time) (end []controlplane.ID, start bool) {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	s.Busy = r.pool.busy
	for id, p := range r.pool.planes {
		p.IsReady = r.isWarmReady(id)
		s.Planes = append(s.Planes, p)
	}
	end, start = decideWarm(s, now)
	for _, id := range end {
		p := r.pool.planes[id]
		p.MustEnd = true
		r.pool.planes[id] = p
	}
	return end, start
}

// idleWarm returns the planes of the pool that have no order yet.
func (r *Runtime) idleWarm() map[controlplane.ID]bool {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	idle := map[controlplane.ID]bool{}
	for id, p := range r.pool.planes {
		if x := r.find(id); !p.MustEnd && (x == nil || x.currentGoal().action != run) {
			idle[id] = true
		}
	}
	return idle
}

func (r *Runtime) isWarmReady(id controlplane.ID) bool {
	x := r.find(id)
	return x != nil && x.observation().State == controlplane.Ready
}

// countWarm counts the planes that a cluster can get, and those that start.
func (r *Runtime) countWarm() (ready, starting int) {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	for id, p := range r.pool.planes {
		switch {
		case p.MustEnd:
		case r.isWarmReady(id):
			ready++
		default:
			starting++
		}
	}
	return ready, starting
}

// WarmPlanes counts the planes that wait for new clusters, and those that start for that.
func (r *Runtime) WarmPlanes() int {
	ready, starting := r.countWarm()
	return ready + starting
}

// startWarm adds a plane to the pool and starts it. Its slot is on the disk before anything else of it.
func (r *Runtime) startWarm(now time.Time) error {
	id := controlplane.ID{Namespace: controlplane.WarmNamespace, Name: strings.ToLower(rand.Text()[:12])}
	state := r.home.state(id)
	if err := os.MkdirAll(filepath.Dir(state), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(state, 0o700); err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(state, slotName), []byte(id.Name+"\n"), 0o600); err != nil {
		return errors.Join(err, os.RemoveAll(state)) // such as a full disk: no directory is left at each attempt
	}
	r.pool.mu.Lock()
	r.pool.planes[id] = warmPlane{ID: id, Made: now, Known: now}
	r.pool.mu.Unlock()
	return r.runWarm(id)
}

// runWarm orders a plane of the pool to run. The plane's customer can later see its name in the subjects of its
// authorities.
func (r *Runtime) runWarm(id controlplane.ID) error {
	x, err := r.runner(id)
	if err != nil {
		return err
	}
	spec := r.o.Warm.Spec
	spec.Name = "plane-" + id.Name
	return r.pursue(x, goal{action: run, spec: spec})
}

// takeWarm removes a ready plane from the pool, the oldest, and returns its runner. The caller gives it to a cluster.
func (r *Runtime) takeWarm() (*runner, bool) {
	defer r.pool.poke()
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	var oldest *warmPlane
	for id, p := range r.pool.planes {
		if !p.MustEnd && r.isWarmReady(id) && (oldest == nil || p.Made.Before(oldest.Made)) {
			oldest = &p
		}
	}
	if oldest == nil {
		return nil, false
	}
	delete(r.pool.planes, oldest.ID)
	return r.find(oldest.ID), true
}

// returnWarm puts a plane back that no cluster has got. Its runner has ended.
func (r *Runtime) returnWarm(id controlplane.ID) error {
	info, err := os.Stat(filepath.Join(r.home.state(id), slotName))
	if err != nil {
		return fmt.Errorf("the slot of a warm plane: %w", err)
	}
	if _, err := r.replaceRunner(id); err != nil {
		return err
	}
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	r.pool.planes[id] = warmPlane{ID: id, Made: info.ModTime(), Known: time.Now()}
	return nil
}
