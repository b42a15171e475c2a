package backup

import (
	"context"
	"errors"
	"hash/fnv"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	"atoll.dev/envelope"
	"atoll.dev/internal/pause"
)

const (
	chainAge  = time.Hour // of a chain, before the next begins
	chainSize = 256 << 20 // of a chain's log, before the next begins

	retryMin = time.Second
	retryMax = 15 * time.Second
	// replaceRetryMax bounds the wait between two attempts to begin the next chain.
	replaceRetryMax = 5 * time.Minute
	// deleteExpiredLimit bounds one call of deleteExpired: a slow store must not delay the next chain for long.
	deleteExpiredLimit = 10 * time.Minute
	// reasonSlow is the text of State.Failing when no attempt has failed yet.
	reasonSlow = "the store or the plane's etcd is slow"
	// failingAfter is the age of State.Stored from which a backup counts as failing.
	failingAfter = 30 * time.Second
	// behindAfter is the age of State.Stored from which updateFailing runs every behindEvery. A follower that stores
	// something in time never wakes up for it.
	behindAfter, behindEvery = 10 * time.Second, 5 * time.Second
)

// Wrap returns a network connection that stands for another one.
type Wrap func(net.Conn) net.Conn

// Options describe a Follower. Store, KMS and Dial are required.
type Options struct {
	Plane Plane
	// Dial returns a connection on which the plane's etcd answers reads. wrap, unless it is nil, replaces each network
	// connection that it makes.
	Dial  func(wrap Wrap) (*grpc.ClientConn, error)
	Store Store
	KMS   envelope.KMS
	// Keys returns the plane's keys and certificates; each chain gets a copy. nil: chains have none.
	Keys func() (Keys, error)
	// Restores returns the restore orders that the plane has executed; each chain lists them. nil: chains list none.
	Restores func() ([]string, error)
	// Release returns the release with which the plane was ready last; each chain names it. nil: chains name none.
	Release func() (string, error)
	// Claim claims the plane's backups for its data, see Claimant.Claim. nil: the follower claims nothing.
	Claim func(context.Context) error
	// Spool is the directory of a temporary file that holds the compressed snapshot until it is stored, so that a slow
	// store does not keep etcd's transaction open. Default: the system's directory of temporary files.
	Spool     string
	Retention Retention // default: DefaultRetention
	// Snapshots bounds the snapshots that followers take at once: a follower sends a value before a snapshot and
	// receives one after it. Default: a channel of its own with room for one.
	Snapshots chan struct{}
	Log       *slog.Logger // default: discards
	Changed   func()       // is called after each change of State.Failing or State.Superseded; default: does nothing
	// Listed is called with the plane's chains whenever they may have changed; default: does nothing.
	Listed func([]Chain)
}

// State is the state of a plane's backup.
type State struct {
	// Stored is a moment: every write that etcd acknowledged before it can be restored. Zero: the follower has stored
	// nothing since it began, or since its machine's clock was set back.
	Stored time.Time
	// Failing is the reason why the follower has stored nothing for half a minute; "" while it stores.
	Failing string
	// Superseded: another management cluster has the plane. The follower has ended and stores nothing any more.
	Superseded bool
}

// Follower makes the backup of one plane. Use New.
type Follower struct {
	o        Options
	renew    chan struct{} // holds one value after Renew, until the next chain begins
	partSize int           // partSize, except in tests
	behind   *time.Timer   // ends behindAfter after the last object was stored; stopped before Run

	mu    sync.Mutex
	state State
	err   error // of the last attempt; nil after a success
	clock clock
	// progress is the moment of State.Stored, or else when Run began, by this process's monotonic clock.
	progress time.Time
}

// New returns a Follower, which does nothing before Run.
func New(o Options) *Follower {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Changed == nil {
		o.Changed = func() {}
	}
	if o.Listed == nil {
		o.Listed = func([]Chain) {}
	}
	if o.Snapshots == nil {
		o.Snapshots = make(chan struct{}, 1)
	}
	if o.Retention == (Retention{}) {
		o.Retention = DefaultRetention()
	}
	o.Log = o.Log.With("plane", o.Plane.String())
	behind := time.NewTimer(behindAfter)
	behind.Stop()
	return &Follower{o: o, renew: make(chan struct{}, 1), partSize: partSize, behind: behind,
		clock: clock{now: bothClocks}}
}

// Renew makes the follower begin the next chain now. It is called when the present chain cannot be restored, and when
// the plane has become ready with another release. The present chain goes on until the next is complete. Renew returns
// at once and may be repeated.
func (f *Follower) Renew() {
	select {
	case f.renew <- struct{}{}:
	default:
	}
}

// State returns the present state.
func (f *Follower) State() State {
	f.readClock() // it may have been set back since the last look at the plane
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

// Run makes the backup until ctx ends or another management cluster has the plane. The plane runs or is starting. Run
// retries after every other error.
func (f *Follower) Run(ctx context.Context) {
	f.mu.Lock()
	f.progress = time.Now()
	f.clock.period = time.Time{} // the next reading begins one
	f.mu.Unlock()
	f.readClock()
	f.behind.Reset(behindAfter)
	ctx, cancel := context.WithCancel(ctx)
	var judging sync.WaitGroup
	judging.Go(func() { f.keepUpdatingFailing(ctx) })
	judging.Go(func() { f.keepClaiming(ctx, cancel) })
	defer judging.Wait()
	defer cancel()
	for wait := retryMin; ctx.Err() == nil; {
		before := f.lastProgress()
		err := f.keepChains(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, ErrSuperseded) {
			f.recordSuperseded(err)
			return
		}
		f.recordFailure(err)
		f.o.Log.Warn("the backup of a plane was interrupted; it begins a new chain", "error", err)
		if f.lastProgress().After(before) {
			wait = retryMin
		}
		if !pause.For(ctx, wait) {
			return
		}
		wait = min(2*wait, retryMax)
	}
}

// keepChains runs a chain, and replaces it by a new chain after an hour, or earlier when its log is large or Renew was
// called. It runs the old chain until the new chain is complete. The error is that of the chain that ended.
func (f *Follower) keepChains(ctx context.Context) error {
	conn, err := f.o.Dial(nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	var chains sync.WaitGroup
	defer chains.Wait()
	defer cancel()

	begin := func() *chain {
		c := newChain(f, conn)
		c.ctx, c.stop = context.WithCancel(ctx)
		chains.Go(func() {
			defer close(c.ended)
			defer c.stop()
			c.err = c.run()
		})
		return c
	}
	f.clearRenew()
	current := begin()
	select {
	case <-current.ended:
		return current.err
	case <-current.complete:
	}
	for age := firstAge(f.o.Plane); ; age = chainAge {
		due := time.NewTimer(age)
		f.deleteExpired(ctx)
		select {
		case <-current.ended:
			due.Stop()
			return current.err
		case <-due.C:
		case <-current.large:
			due.Stop()
		case <-f.renew:
			due.Stop()
		}
		next, err := f.replaceChain(ctx, current, begin)
		if err != nil {
			return err
		}
		current = next
	}
}

// replaceChain begins the next chain, waits until it is complete, and then stops the current chain. When the next chain
// fails, replaceChain begins another one, and the current chain goes on meanwhile: a full disk for snapshots must not
// end a log that can be stored. The error is that of the current chain.
func (f *Follower) replaceChain(ctx context.Context, current *chain, begin func() *chain) (*chain, error) {
	for wait := retryMin; ; wait = min(2*wait, replaceRetryMax) {
		f.clearRenew()
		next := begin()
		select {
		case <-current.ended:
			return nil, current.err
		case <-next.complete:
			current.stop()
			return next, nil
		case <-next.ended:
		}
		f.o.Log.Warn("the next chain of a backup failed; the present one goes on, and the next is tried again",
			"error", next.err)
		if !pause.For(ctx, wait) {
			return nil, ctx.Err()
		}
	}
}

// clearRenew forgets a call of Renew: a chain begins now.
func (f *Follower) clearRenew() {
	select {
	case <-f.renew:
	default:
	}
}

// firstAge returns the age at which a follower's first chain is replaced: between half an hour and an hour, by the
// plane's name. The followers of all planes begin when hosting starts; their next chains should not begin together.
func firstAge(p Plane) time.Duration {
	return chainAge/2 + time.Duration(p.hash()%uint64(chainAge/2))
}

func (p Plane) hash() uint64 {
	h := fnv.New64a()
	h.Write([]byte(p.String()))
	return h.Sum64()
}

// offset returns the whole seconds after each multiple of lookEvery at which the plane's follower works: the followers
// of many planes do not all store an object at the same moment.
func (p Plane) offset() time.Duration {
	return time.Duration(p.hash()%uint64(lookEvery/time.Second)) * time.Second
}

// readClock reads the clock of this machine. When it was set back, nothing of its new period is stored yet.
func (f *Follower) readClock() reading {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.clock.period
	r := f.clock.read()
	if !r.period.Equal(before) {
		f.state.Stored = time.Time{}
	}
	return r
}

// recordStored records that everything before a moment of a period of the clock is in the store.
func (f *Follower) recordStored(period, at time.Time) {
	now := f.readClock()
	f.mu.Lock()
	if period.Equal(now.period) && at.After(f.state.Stored) {
		f.state.Stored = at
		f.progress = time.Now().Add(-max(now.now.Sub(at), 0))
	}
	f.err = nil
	f.mu.Unlock()
	f.behind.Reset(behindAfter)
	f.updateFailing()
}

// lastProgress returns a moment of this process's monotonic clock, from which on nothing is stored.
func (f *Follower) lastProgress() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.progress
}

// recordFailure records a failed attempt.
func (f *Follower) recordFailure(err error) {
	f.mu.Lock()
	f.err = err
	f.mu.Unlock()
	f.updateFailing()
}

// keepUpdatingFailing calls updateFailing every behindEvery while nothing is stored, until ctx ends: time alone can
// make a backup failing.
func (f *Follower) keepUpdatingFailing(ctx context.Context) {
	defer f.behind.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.behind.C:
			f.updateFailing()
			f.behind.Reset(behindEvery)
		}
	}
}

// updateFailing sets State.Failing: the backup fails when the follower has stored nothing for failingAfter.
func (f *Follower) updateFailing() {
	f.readClock() // every few seconds also while nothing is stored, so that the begin of a new period is known as exactly
	f.mu.Lock()
	before := f.state.Failing
	switch {
	case time.Since(f.progress) <= failingAfter:
		f.state.Failing = ""
	case before != "" && before != reasonSlow:
		// Keep the first error: the next ones may have other port numbers, and each change of Failing is a status
		// write.
	case f.err != nil:
		f.state.Failing = f.err.Error()
	default:
		f.state.Failing = reasonSlow
	}
	changed := f.state.Failing != before
	f.mu.Unlock()
	if changed {
		f.o.Changed()
	}
}

// put stores an object, and tries again until it is stored or ctx ends.
func (f *Follower) put(ctx context.Context, name string, object []byte) error {
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		err := f.o.Store.Put(ctx, name, object)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f.recordFailure(err)
		f.o.Log.Warn("an object of a backup could not be stored; it is tried again", "object", name, "error", err)
		if !pause.For(ctx, wait) {
			return ctx.Err()
		}
	}
}

// errCompacted is the error of a watch whose next changes etcd has compacted before the follower could store them.
var errCompacted = errors.New("etcd has compacted changes that were not stored yet; a new snapshot has them")

// deleteExpired deletes the backups that the plane's retention does not keep, and passes the rest to Options.Listed. It
// runs again when the next chain is complete, so it only logs errors.
func (f *Follower) deleteExpired(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, deleteExpiredLimit)
	defer cancel()
	n, err := DeleteExpired(ctx, f.o.Store, f.o.Plane, f.o.Retention, time.Now())
	if n > 0 {
		f.o.Log.Info("expired backups were deleted", "objects", n)
	}
	if err != nil {
		f.o.Log.Warn("expired backups could not be deleted; it is tried again with the next chain", "error", err)
	}
	chains, err := Chains(ctx, f.o.Store, f.o.Plane)
	if err != nil {
		f.o.Log.Warn("the backups of a plane could not be listed", "error", err)
		return
	}
	f.o.Listed(chains)
}
