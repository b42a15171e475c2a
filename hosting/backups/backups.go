// Package backups runs one follower (package backup) for each running control plane. The follower makes the backup.
//
// Hosting passes the running planes to it, and shows the state of their backups. The package knows no
// HostedCluster. Only cli makes a Backups, and only hosting uses it.
package backups

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"atoll.dev/backup"
	"atoll.dev/envelope"
	"atoll.dev/hosting/controlplane"
)

// endLimit is the time that a follower gets to store the last changes of a plane that has ended.
const endLimit = 10 * time.Second

// snapshotsAtOnce bounds the snapshots that are taken at the same time on one machine.
const snapshotsAtOnce = 2

// preparationsAtOnce bounds the restores whose data is made at the same time on one machine.
const preparationsAtOnce = 2

// Options describe Backups. Store, KMS, Dial and Spool are required.
type Options struct {
	Store backup.Store
	KMS   envelope.KMS
	// Dial returns a connection on which a plane's etcd answers reads, see backup.Options.
	Dial func(controlplane.ID, backup.Wrap) (*grpc.ClientConn, error)
	// Dir returns a plane's directory, whose keys are backed up; nil: backups have no keys.
	Dir func(controlplane.ID) string
	// Staging returns the directory in which the data of a restore is made, and Programs have the atoll-kube of each
	// release that makes it; both are needed by Prepare.
	Staging func(id controlplane.ID, order string) string
	// Restores returns the restore orders that a plane has executed; nil: backups list none.
	Restores func(controlplane.ID) ([]string, error)
	Programs map[controlplane.Version]string
	// State returns a plane's directory of state, which is deleted with the plane. nil: the backups of a plane have no
	// owner, and two management clusters that run the same plane do not detect that.
	State func(controlplane.ID) string
	// Record returns the record of a plane's last start, which moves with the plane, and from which each chain of its
	// backup names the release; nil: no record moves, and chains name none.
	Record func(controlplane.ID) (controlplane.LastStart, error)
	// Endpoint is HOST:PORT where customers reach the planes of this machine; planes that move here need it.
	Endpoint string
	// Spool is the directory for temporary files, and for the notes of deletions that the store does not have yet. Run
	// creates it if it does not exist.
	Spool string

	Log     *slog.Logger          // default: none
	Metrics prometheus.Registerer // default: none
}

// Backups makes the backups of many planes. Use New. Its methods may be called by many goroutines.
type Backups struct {
	o         Options
	records   *backup.Records
	snapshots chan struct{}

	mu        sync.Mutex
	ctx       context.Context // of Run; nil before
	changed   func(controlplane.ID)
	followers map[controlplane.ID]*follower
	early     map[controlplane.ID]controlplane.Version // planes that ran before Run, as Begin named their releases
	deleted   map[controlplane.ID]backup.Identity      // clusters whose deletion is not complete, see Deleted
	wake      chan struct{}                            // holds one value after a deletion, until keepExpiring receives it
	asked     map[controlplane.ID]bool                 // planes whose restore or move was ordered before Run
	preparing map[controlplane.ID]*preparation
	leaving   map[controlplane.ID]*leaving
	windows   map[controlplane.ID]controlplane.BackupWindow
	listed    map[controlplane.ID][]backup.Chain      // from which windows are computed
	damaged   map[controlplane.ID]map[string]struct{} // names of chains that a restore could not read
	// preparations has one value for each order whose data is being made.
	preparations chan struct{}
	endDrill     context.CancelFunc // ends the making of the data of a scratch plane; nil: none is made
	running      sync.WaitGroup
	drawing      sync.Mutex // held while the identity of a plane's data changes; taken before mu
}

// follower is one plane's follower.
type follower struct {
	*backup.Follower
	cancel  context.CancelFunc
	end     *time.Timer          // calls Backups.remove; nil while the plane runs
	release controlplane.Version // with which the plane was ready last, as of the last Begin
}

// New returns Backups that do nothing before Run.
func New(o Options) *Backups {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	b := &Backups{o: o, records: backup.NewRecords(o.Store, o.KMS),
		snapshots: make(chan struct{}, snapshotsAtOnce), followers: map[controlplane.ID]*follower{},
		early:   map[controlplane.ID]controlplane.Version{},
		deleted: map[controlplane.ID]backup.Identity{}, wake: make(chan struct{}, 1),
		asked: map[controlplane.ID]bool{}, preparing: map[controlplane.ID]*preparation{},
		leaving: map[controlplane.ID]*leaving{},
		listed:  map[controlplane.ID][]backup.Chain{}, damaged: map[controlplane.ID]map[string]struct{}{},
		windows: map[controlplane.ID]controlplane.BackupWindow{}, preparations: make(chan struct{}, preparationsAtOnce)}
	if o.Metrics != nil {
		o.Metrics.MustRegister(
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "atoll_backup_failing", Help: "Running planes whose backup is more than 30 s behind.",
			}, b.countFailing),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "atoll_backup_age_seconds", Help: "Age of the oldest backup among those of the running planes.",
			}, b.oldestAge),
		)
	}
	return b
}

// Run makes backups until ctx ends. changed is called after each change of a plane's State; it must not block.
func (b *Backups) Run(ctx context.Context, changed func(controlplane.ID)) error {
	if err := os.MkdirAll(b.o.Spool, 0o700); err != nil {
		return err
	}
	interrupted, err := filepath.Glob(filepath.Join(b.o.Spool, comparePrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range interrupted { // of dry runs that a kill ended: they have a customer's data
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := b.readDeletions(); err != nil {
		return err
	}
	b.mu.Lock()
	b.ctx, b.changed = ctx, changed
	for id, served := range b.early {
		b.start(id)
		b.followers[id].release = served
	}
	asked := b.asked
	b.early, b.asked = nil, nil
	b.mu.Unlock()
	for id := range asked {
		changed(id)
	}
	b.running.Go(func() { b.keepExpiring(ctx) })
	<-ctx.Done()
	b.running.Wait()
	return nil
}

// Begin starts the backup of a running plane. served is the release with which the plane was ready last; "" when it was
// not ready yet. A caller repeats Begin: when served is another release than before, a new chain begins, which names
// that release. A scratch plane has no backup.
func (b *Backups) Begin(id controlplane.ID, served controlplane.Version) {
	if id.IsScratch() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.preparing[id]; p != nil && p.state.State == controlplane.PreparationNone {
		delete(b.preparing, id) // the plane has started without a recovery
	}
	f := b.followers[id]
	switch {
	case b.ctx == nil:
		b.early[id] = served
	case b.ctx.Err() != nil:
	case f == nil:
		b.start(id)
	case f.end != nil && f.end.Stop(): // the plane runs again
		f.end = nil
	case f.end != nil: // remove is about to end the old follower
		f.cancel()
		b.start(id)
	}
	if f := b.followers[id]; f != nil && served != "" && f.release != served {
		if f.release != "" { // the present chain names the release before
			f.Renew()
		}
		f.release = served
	}
}

// readRelease returns the release with which a plane was ready last; "" when no record of the plane is known.
func (b *Backups) readRelease(id controlplane.ID) (controlplane.Version, error) {
	if b.o.Record == nil {
		return "", nil
	}
	last, err := b.o.Record(id)
	return last.Served, err
}

// End ends the backup of a plane that does not run any more: its follower stores the last changes, and then ends. It
// may be repeated.
func (b *Backups) End(id controlplane.ID) {
	b.drawing.Lock() // wait for a follower that generates an owner now: the caller deletes the plane's state next
	defer b.drawing.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.early, id)
	if f := b.followers[id]; f != nil && f.end == nil {
		f.end = time.AfterFunc(endLimit, func() { b.remove(id, f) })
	}
}

// isRunning reports whether f is the present follower of the plane, and the plane runs.
func (b *Backups) isRunning(id controlplane.ID, f *follower) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.followers[id] == f && f.end == nil
}

// start starts a plane's follower. The caller holds mu.
func (b *Backups) start(id controlplane.ID) {
	ctx, cancel := context.WithCancel(b.ctx)
	var keys func() (backup.Keys, error)
	if b.o.Dir != nil {
		keys = func() (backup.Keys, error) { return backup.ReadKeys(b.o.Dir(id)) }
	}
	var restores func() ([]string, error)
	if b.o.Restores != nil {
		restores = func() ([]string, error) { return b.o.Restores(id) }
	}
	f := &follower{cancel: cancel}
	var claim func(context.Context) error
	if b.o.State != nil {
		claim = b.records.Claimant(backup.Plane(id), keeper{b: b, id: id, follower: f}).Claim
	}
	f.Follower = backup.New(backup.Options{
		Keys: keys, Restores: restores, Claim: claim,
		Release: func() (string, error) {
			release, err := b.readRelease(id)
			return string(release), err
		},
		Plane: backup.Plane(id), Dial: func(w backup.Wrap) (*grpc.ClientConn, error) { return b.o.Dial(id, w) },
		Store: b.o.Store, KMS: b.o.KMS, Spool: b.o.Spool, Snapshots: b.snapshots, Log: b.o.Log,
		Changed: func() { b.followerChanged(id, f.Follower) },
		Listed:  func(chains []backup.Chain) { b.setWindow(id, f, chains) },
	})
	b.followers[id] = f
	b.running.Go(func() { f.Run(ctx) })
}

// Renew begins a new chain of a plane's backup, because the present one cannot be restored. It does nothing for a plane
// without a follower: each follower begins with a new chain.
func (b *Backups) Renew(id controlplane.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.followers[id]; f != nil {
		f.Renew()
	}
}

// remove ends a follower. The plane's window keeps the follower's State.Stored.
func (b *Backups) remove(id controlplane.ID, f *follower) {
	stored := f.State().Stored
	b.mu.Lock()
	f.cancel()
	if b.followers[id] == f {
		delete(b.followers, id)
	}
	w, isKnown := b.windows[id]
	if isKnown && !stored.IsZero() {
		w.Stored = stored
		b.windows[id] = w
	}
	b.mu.Unlock()
	if isKnown {
		b.changed(id)
	}
}

// State returns the state of a plane's backup. It returns false if the plane has no follower: before Run, or after the
// follower of an ended plane has gone.
func (b *Backups) State(id controlplane.ID) (backup.State, bool) {
	b.mu.Lock()
	f := b.followers[id]
	b.mu.Unlock()
	if f == nil {
		return backup.State{}, false
	}
	return f.State(), true
}

// states returns the states of all planes that run.
func (b *Backups) states() (list []backup.State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.followers {
		if f.end == nil {
			list = append(list, f.State())
		}
	}
	return list
}

func (b *Backups) countFailing() (n float64) {
	for _, s := range b.states() {
		if s.Failing != "" {
			n++
		}
	}
	return n
}

func (b *Backups) oldestAge() (age float64) {
	for _, s := range b.states() {
		if !s.Stored.IsZero() {
			age = max(age, time.Since(s.Stored).Seconds())
		}
	}
	return age
}
