// Package drill restores backups of control planes for practice. Every hour it chooses a plane and a second of the
// plane's window at random, restores the backup into a scratch plane, compares the keys of its etcd with those that the
// plane's etcd had at that revision, has the scratch plane's API server decrypt all Secrets, and deletes it.
//
// The decisions which plane, which second and when are in decide.go; Drills executes them. Hosting shows a failed drill
// in the status of the HostedCluster. Only cli makes Drills.
package drill

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/pause"
)

const (
	// lookAgain is the wait before the next attempt when no plane can be drilled, and after a drill without a result.
	lookAgain = time.Minute
	// drillLimit bounds one drill.
	drillLimit = 15 * time.Minute
	pollEvery  = 100 * time.Millisecond
)

// Runtime runs the scratch plane, as hosting's own Runtime does.
type Runtime interface {
	Ensure(id controlplane.ID, spec controlplane.Spec) error
	Observe(id controlplane.ID) (controlplane.Observation, error)
	Discard(id controlplane.ID) (done bool, err error)
}

// Inventory lists the planes of this machine, and returns administrators' access to them.
type Inventory interface {
	List() []controlplane.ID
	Client(id controlplane.ID) (controlplane.Admin, error)
}

// Planes is a runtime of control planes, as package process has it.
type Planes interface {
	Runtime
	Inventory
}

// Backups makes and compares the data of scratch planes; backups.Backups implements it.
type Backups interface {
	// Drillable returns the windows of the planes that a drill can restore: they run, and their backup is not failing.
	Drillable() map[controlplane.ID]controlplane.BackupWindow
	// PrepareScratch makes the data of a scratch plane in its staging directory. Only the error
	// controlplane.ErrBadBackup means that the backup is bad.
	PrepareScratch(ctx context.Context, scratch controlplane.ID, o controlplane.RestoreOrder) (
		controlplane.ScratchData, error)
	// CompareScratch compares the keys of the scratch plane's etcd with the expected ones.
	CompareScratch(ctx context.Context, scratch controlplane.ID, data controlplane.ScratchData) (
		controlplane.ScratchComparison, error)
}

// Options describe Drills. Planes and File are required.
type Options struct {
	Planes  Planes
	Backups Backups       // nil: there are no drills
	Every   time.Duration // between two drills; 0: there are none
	File    string        // keeps the results over restarts
	// Renew starts a new chain of a plane's backup. It is called when a drill of the plane's newest chain fails.
	// Default: nothing.
	Renew func(controlplane.ID)
	// Machine returns the room that the machine has for a scratch plane; default: read from the kernel.
	Machine func() (Machine, error)

	Log     *slog.Logger          // default: none
	Metrics prometheus.Registerer // default: none
}

// Drills restores backups for practice. Use New. Its methods may be called by many goroutines.
type Drills struct {
	o       Options
	results *prometheus.CounterVec
	began   time.Time

	mu    sync.Mutex
	state state
}

// Results of drills, as a label of the metric.
const (
	resultSuccess    = "success"
	resultFailure    = "failure"
	resultUnfinished = "unfinished" // proves nothing about the backup
)

// New reads the results of earlier drills from Options.File. The drills begin with Run.
func New(o Options) *Drills {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Machine == nil {
		o.Machine = ReadMachine
	}
	if o.Renew == nil {
		o.Renew = func(controlplane.ID) {}
	}
	d := &Drills{o: o, began: time.Now(), results: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "atoll_backup_drills_total", Help: "Restores of backups for practice, by result.",
	}, []string{"result"})}
	for _, r := range []string{resultSuccess, resultFailure, resultUnfinished} {
		d.results.WithLabelValues(r)
	}
	content, err := os.ReadFile(o.File)
	if err == nil {
		err = json.Unmarshal(content, &d.state)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.state = state{}
		o.Log.Warn("the results of restore drills could not be read; the drills begin anew", "file", o.File, "error", err)
	}
	if o.Metrics != nil && d.isOn() {
		o.Metrics.MustRegister(d.results, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "atoll_backup_drill_age_seconds",
			Help: "Time since a backup was last restored for practice with success, or since the start before the first.",
		}, d.age))
	}
	return d
}

func (d *Drills) isOn() bool { return d.o.Backups != nil && d.o.Every > 0 }

func (d *Drills) age() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state.Succeeded.IsZero() {
		return time.Since(d.began).Seconds()
	}
	return time.Since(d.state.Succeeded).Seconds()
}

// Failure returns the reason why the last drill of a plane's backup failed, for the cluster's owner; "" when it did not
// fail. When drills are switched off it is "", too: no drill could clear the failure.
func (d *Drills) Failure(id controlplane.ID) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.isOn() {
		return ""
	}
	return d.state.Failed[id.String()].Message
}

// Forget removes the failure of a plane that the runtime has deleted. It may be repeated.
func (d *Drills) Forget(id controlplane.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, isThere := d.state.Failed[id.String()]; !isThere {
		return
	}
	d.state.Failed = maps.Clone(d.state.Failed) // Run may be reading the old map without the lock
	delete(d.state.Failed, id.String())
	d.write()
}

// write stores the state in the file. It logs an error; the next write stores the state again. The caller holds mu.
func (d *Drills) write() {
	content, err := json.Marshal(d.state)
	if err == nil {
		err = atomicfile.Write(d.o.File, content, 0o600)
	}
	if err != nil {
		d.o.Log.Warn("the results of restore drills were not written", "file", d.o.File, "error", err)
	}
}

// Run makes drills until ctx ends, and then returns at once. A scratch plane may run on; the next Run deletes it, also
// when drills are switched off. The caller has opened the runtime of the planes. Run calls changed after each change of
// a plane's Failure.
func (d *Drills) Run(ctx context.Context, changed func(controlplane.ID)) error {
	random := draw(rand.Int64N)
	d.discardAll(ctx)
	if !d.isOn() {
		return nil
	}
	d.mu.Lock()
	d.state = d.state.begin(d.o.Every, time.Now(), random)
	d.write()
	wait := d.state.untilNext(d.o.Every, time.Now())
	d.mu.Unlock()
	again := min(d.o.Every, lookAgain)
	for pause.For(ctx, wait) {
		d.mu.Lock()
		s := d.state
		d.mu.Unlock()
		candidates, available, err := d.gather()
		if err != nil {
			d.o.Log.Warn("no backup is restored for practice", "error", err)
		}
		p, isPossible := s.choose(candidates, available, random)
		if !isPossible {
			wait = again
			continue
		}
		result, err := d.execute(ctx, p)
		if ctx.Err() != nil {
			return nil
		}
		d.discardAll(ctx)
		if err != nil {
			wait = again
			if errors.Is(err, backup.ErrOutside) {
				d.mu.Lock()
				d.state = d.state.withoutSecond(p)
				d.mu.Unlock()
			}
			continue
		}
		d.mu.Lock()
		if result.failed != nil && !slices.Contains(d.o.Planes.List(), p.Plane) { // it was deleted meanwhile: see Forget
			d.mu.Unlock()
			wait = again
			continue
		}
		d.state = d.state.after(p, result, time.Now())
		d.write()
		wait = d.state.untilNext(d.o.Every, time.Now())
		d.mu.Unlock()
		if result.failed != nil && needsNewChain(candidates, p) {
			d.o.Log.Warn("a restore drill failed; a new chain replaces the newest one", "plane", p.Plane.String())
			d.o.Renew(p.Plane)
		}
		changed(p.Plane)
	}
	return nil
}

// gather returns the planes whose backups can be drilled, in the order of their names, and the memory that the machine
// has for a scratch plane. A plane between two releases is left out: its data may need either.
func (d *Drills) gather() (list []candidate, available int64, err error) {
	machine, err := d.o.Machine()
	if err != nil {
		return nil, 0, err
	}
	for id, window := range d.o.Backups.Drillable() {
		o, err := d.o.Planes.Observe(id)
		if err != nil || o.State != controlplane.Ready || o.LastStart.Release != o.LastStart.Served {
			continue
		}
		list = append(list, candidate{ID: id, Window: window, Memory: o.Size.Limits.Memory})
	}
	slices.SortFunc(list, func(a, b candidate) int { return strings.Compare(a.ID.String(), b.ID.String()) })
	return list, machine.Memory, nil
}

// discardAll deletes all scratch planes: those that an earlier process has left, and that of a drill that has ended. It
// tries again until ctx ends: a scratch plane has a customer's data.
func (d *Drills) discardAll(ctx context.Context) {
	for _, id := range d.o.Planes.List() {
		if !id.IsScratch() {
			continue
		}
		for wait := pollEvery; ; {
			done, err := d.o.Planes.Discard(id)
			if done {
				break
			}
			if err != nil {
				d.o.Log.Warn("a scratch plane could not be deleted; it is tried again", "plane", id.String(), "error", err)
				wait = min(2*wait, lookAgain)
			}
			if !pause.For(ctx, wait) {
				return
			}
		}
	}
}
