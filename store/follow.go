package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"atoll.dev/internal/pause"
)

// Batch is a part of a run. A run brings a follower from one state of the database to a later one;
// it is one batch, or several if it is long.
type Batch struct {
	// Documents that changed, each at most once in a run, tombstones included, in no order.
	Documents []Document
	// Relist means that the run lists all documents instead of changes. A document that the follower
	// has and that is in no batch of the run was removed. A relist has no tombstones.
	Relist bool
	// First and Last mark the first and the last batch of a run. An interrupted run starts again
	// with a First batch.
	First, Last bool
	// Cursor is where a later Follow continues: after this run if the batch is the last of its run,
	// otherwise after the run before. The cursor may lie some changes before that; a later Follow
	// then sends these again.
	Cursor Cursor

	xids []uint64 // of Documents
	at   position // where its run ends
	// committedAfter is when the reader requested the snapshot at which the run begins; all documents of the
	// run were committed later. Zero: not known.
	committedAfter time.Time
}

// FollowOptions are the parameters of Follow.
type FollowOptions struct {
	// Name makes the cursor durable: a later Follow with this name, also in another process,
	// continues where this Follow stopped. Only one follower may use a name at a time. "": the
	// cursor is not durable.
	Name string
	// Kinds to follow; none: all kinds of the store.
	Kinds []Kind
	// From is the cursor at which Follow starts; "" is the durable cursor, or a relist if there is
	// none. Follow returns ErrGone when the database cannot serve From any more; without From it
	// relists instead.
	From Cursor
	// SaveEvery is how often Follow saves a durable cursor while there are changes; default 500 ms.
	// After a crash Follow sends the changes since the last save again.
	SaveEvery time.Duration
	// UpToDate, unless nil, is called after each run, also if nothing changed: apply has got every
	// change that was committed before requestedAt. It must not block.
	UpToDate func(requestedAt time.Time)

	// onRunEnd is called after each run, also if nothing changed, with the position where the run
	// ended and the time when the reader requested that snapshot; it may be nil.
	onRunEnd func(position, time.Time)
	readNow  <-chan struct{} // a token begins a run at once; may be nil
}

// Follow calls apply with the documents that change. It always returns an error:
//
//   - an error of apply, unchanged. The cursor stays before that run.
//   - the cause of ctx, when ctx has ended.
//   - ErrGone, only with FollowOptions.From: the database cannot serve From, or was restored.
//   - ErrInvalid: a kind that is not one of the store's, or a malformed From.
//
// For each document that changed, apply gets a state at least as new as the change; Follow may
// leave out the states in between. While Follow runs, a document never goes back to an older
// version, and no version comes twice. After a restart Follow sends the changes since the cursor
// again, so apply must be idempotent across restarts. The cursor moves when apply has returned for
// all batches of a run. One goroutine calls apply, with one batch at a time; apply may keep and
// modify the documents.
//
// While the database is unavailable, Follow retries with back-off. Several goroutines may call
// Follow, with different names.
func (s *Store) Follow(ctx context.Context, o FollowOptions, apply func(ctx context.Context, b Batch) error) error {
	f, err := s.newFollower(o, apply)
	if err != nil {
		return fmt.Errorf("following: %w", err)
	}
	sub, leave := s.hub.subscribe(f.watchedKinds)
	defer leave()
	defer f.save(context.WithoutCancel(ctx), atEnd)
	backoff := time.Duration(0)
	for {
		started := time.Now()
		err := f.run(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			backoff = 0
			if o.UpToDate != nil {
				o.UpToDate(f.requestedAt)
			}
			if o.onRunEnd != nil {
				o.onRunEnd(f.at, f.requestedAt)
			}
		case errors.Is(err, errReconnected):
			f.rewind()
			continue
		case errors.Is(err, errApply):
			return errors.Unwrap(err)
		case errors.Is(err, errRestored):
			if err := s.ensureIncarnation(ctx); err != nil {
				s.log.Warn("beginning a new incarnation of a restored database failed", "error", err)
				backoff = nextBackoff(backoff)
			} else if o.From != "" {
				return fmt.Errorf("following: %w: the database was restored", ErrGone)
			}
			f.restart()
		case errors.Is(err, ErrGone) || errors.Is(err, ErrInvalid):
			if o.From != "" {
				return fmt.Errorf("following: %w", err)
			}
			s.log.Info("a follower lists again", "follower", o.Name, "reason", err.Error())
			f.restart()
			continue
		default:
			f.rewind()
			backoff = nextBackoff(backoff)
			s.log.Warn("a follower cannot read", "follower", o.Name, "error", err, "retry", backoff)
		}
		if backoff > 0 {
			if !pause.For(ctx, backoff) {
				return context.Cause(ctx)
			}
			continue
		}
		f.save(ctx, whenDue)
		if wait := s.feedPause(time.Since(started)); wait > 0 && !pause.For(ctx, wait) {
			return context.Cause(ctx)
		}
		poll := time.NewTimer(s.opts.PollInterval)
		select {
		case <-ctx.Done():
		case <-sub.woken:
		case <-o.readNow:
		case <-poll.C:
		}
		poll.Stop()
	}
}

// catchUp calls show once with each document that changed since the cursor, and returns the cursor
// from which the caller continues. It reads on the connections for watches (ReplayConns) and holds
// none while it calls show. It returns an error of show unchanged, ErrGone or ErrInvalid for a
// cursor that the database cannot serve, and the cause of ctx.
func (s *Store) catchUp(ctx context.Context, from Cursor, kinds []Kind, show func(Document) error) (Cursor, error) {
	f, err := s.newFollower(FollowOptions{Kinds: kinds, From: from}, func(_ context.Context, b Batch) error {
		for _, d := range b.Documents {
			if err := show(d); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	f.reader = s.watchers
	for backoff := time.Duration(0); ; backoff = nextBackoff(backoff) {
		err := f.run(ctx)
		switch {
		case err == nil:
			return f.safe.cursor(), nil
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case errors.Is(err, errApply):
			return "", errors.Unwrap(err)
		case errors.Is(err, errRestored): // Follow, not catchUp, calls ensureIncarnation
			return "", fmt.Errorf("%w: the database was restored", ErrGone)
		case errors.Is(err, ErrGone), errors.Is(err, ErrInvalid):
			return "", err
		}
		f.rewind()
		if backoff > 0 {
			s.log.Warn("a watch cannot read the changes since its cursor", "error", err, "retry", backoff)
		}
		if !pause.For(ctx, backoff) {
			return "", context.Cause(ctx)
		}
	}
}

// nextBackoff returns the back-off after this one: twice as long, between 20 ms and 1 s.
func nextBackoff(backoff time.Duration) time.Duration {
	return min(max(2*backoff, 20*time.Millisecond), time.Second)
}

// applyError wraps an error that the caller's apply returned, so that errors.Is finds errApply.
type applyError struct{ err error }

var errApply = errors.New("apply")

func (e *applyError) Error() string        { return e.err.Error() }
func (e *applyError) Unwrap() error        { return e.err }
func (e *applyError) Is(target error) bool { return target == errApply }

// follower is the state of one Follow. Only Follow's goroutine touches it.
type follower struct {
	s            *Store
	reader       *reader
	opts         FollowOptions
	watchedKinds []Kind
	kindNames    []string
	apply        func(context.Context, Batch) error

	loaded        bool      // the durable cursor was read, if there is one
	at            position  // apply got all changes before it; without a snapshot: none
	requestedAt   time.Time // when the snapshot of the latest run was requested
	atRequestedAt time.Time // when the snapshot of at was requested; zero: not known
	current       *run      // the run that has begun and not ended; or nil

	// A cursor is safe when the WAL is on disk up to the moment of its snapshot. PostgreSQL does
	// not wait until the WAL records of a rolled-back transaction are on disk. If the server
	// crashes before, it gives the id of that transaction to another one, which the cursor already
	// counts as seen. So after an interruption a follower continues from the last safe position,
	// and skips the versions that it has delivered.
	safe         position
	unflushed    []unflushedRun
	readAt       time.Time        // when the last read of the feed began
	skipVersions map[docKey]int64 // versions that apply got and the feed will return again

	dirty   bool      // apply got a batch since the last save of the durable cursor
	saved   position  // the durable cursor, as last saved
	savedAt time.Time // when it was saved
}

// docKey identifies a document.
type docKey struct {
	kind Kind
	id   string
}

// unflushedRun is the end of a run: a position that is safe once the WAL is on disk up to lsn.
type unflushedRun struct {
	at        position
	lsn       uint64
	delivered map[docKey]int64 // the versions that the run delivered
}

// run is a run that has begun and not ended.
type run struct {
	relist         bool
	until          *position        // the position where the run ends; nil before its first chunk
	lsn            uint64           // the position in the WAL from which on until is safe
	flushed        bool             // until is safe
	delivered      map[docKey]int64 // the versions delivered while until is not safe
	deliveredEarly map[docKey]int64 // versions that a relist delivered and until does not see: the next run has them again
	after          feedKey          // the last document of the chunk before
	began          bool             // apply got a batch of the run
}

// newFollower returns a follower that begins at From, or at the durable cursor when it runs.
func (s *Store) newFollower(o FollowOptions, apply func(context.Context, Batch) error) (*follower, error) {
	if o.SaveEvery == 0 {
		o.SaveEvery = 500 * time.Millisecond
	}
	f := &follower{s: s, reader: s.followers, opts: o, apply: apply, watchedKinds: o.Kinds}
	if len(f.watchedKinds) == 0 {
		for k := range s.kinds {
			f.watchedKinds = append(f.watchedKinds, k)
		}
	}
	for _, k := range f.watchedKinds {
		if _, err := s.kind(k); err != nil {
			return nil, err
		}
		f.kindNames = append(f.kindNames, string(k))
	}
	if o.From != "" {
		p, err := o.From.position()
		if err != nil {
			return nil, err
		}
		f.at, f.safe, f.loaded = p, p, true
	}
	return f, nil
}

// run does one run, from the follower's position to the present, or continues an interrupted one.
func (f *follower) run(ctx context.Context) error {
	if !f.loaded {
		if err := f.load(ctx); err != nil {
			return err
		}
	}
	if f.current == nil {
		f.current = &run{relist: f.at.snapshot == "", delivered: map[docKey]int64{}, deliveredEarly: map[docKey]int64{}}
	}
	for r := f.current; ; {
		c, err := f.read(ctx, r)
		if err != nil {
			return err
		}
		if hook := f.s.opts.Hooks.AfterChunk; hook != nil {
			hook()
		}
		if r.until == nil {
			r.until, r.lsn, f.requestedAt = &c.at, c.inserted, c.startedAt
		}
		f.noteFlushed(c.flushed)
		r.after = c.lastKey()
		if !c.more && r.relist && !r.flushed && f.reader.flush(ctx, openedBefore(f.readAt)) == nil {
			f.noteFlushed(r.lsn) // there is no earlier cursor that is safe
		}
		if err := f.deliver(ctx, r, c); err != nil {
			return err
		}
		if !c.more {
			return nil
		}
	}
}

// read reads the next chunk of the run. It returns errReconnected when the server may have crashed
// since the last read and a position is not safe yet.
func (f *follower) read(ctx context.Context, r *run) (c chunk, err error) {
	var opened openedBefore
	if len(f.unflushed) > 0 || r.until != nil && !r.flushed {
		opened = openedBefore(f.readAt)
	}
	defer func() {
		if err == nil {
			f.readAt = c.startedAt
		}
	}()
	if r.relist {
		c, err := f.reader.readAll(ctx, opened, f.kindNames, r.after, f.reader.documents)
		if err == nil && r.until != nil && r.until.incarnation != c.at.incarnation {
			err = fmt.Errorf("%w: the database was restored meanwhile", ErrGone)
		}
		return c, err
	}
	return f.reader.readChanges(ctx, opened, f.kindNames, f.at, r.until, r.after, f.reader.documents)
}

// deliver calls apply with the documents of a chunk, and ends the run after its last chunk.
func (f *follower) deliver(ctx context.Context, r *run, c chunk) error {
	b := Batch{Relist: r.relist, First: !r.began, Last: !c.more, at: *r.until, committedAfter: f.atRequestedAt}
	for i, d := range c.docs {
		key := docKey{d.Kind, d.ID}
		if !r.flushed {
			r.delivered[key] = d.Version
		}
		if version, ok := f.skipVersions[key]; ok && version == d.Version {
			continue
		}
		if r.relist && !r.until.sees(c.xids[i]) {
			r.deliveredEarly[key] = d.Version
		}
		b.Documents, b.xids = append(b.Documents, d), append(b.xids, c.xids[i])
	}
	if b.Last && !r.flushed {
		f.unflushed = append(f.unflushed, unflushedRun{*r.until, r.lsn, r.delivered})
	}
	if b.Last && r.flushed {
		f.safe = *r.until
	}
	b.Cursor = f.safe.cursor()
	if len(b.Documents) > 0 || r.relist || r.began && b.Last {
		r.began = true
		if err := f.apply(ctx, b); err != nil {
			return &applyError{err}
		}
		f.dirty = true
	}
	if b.Last {
		f.at, f.atRequestedAt, f.skipVersions, f.current = *r.until, f.requestedAt, r.deliveredEarly, nil
	}
	return nil
}

// noteFlushed records that the WAL is on disk up to flushed. Positions before that become safe.
func (f *follower) noteFlushed(flushed uint64) {
	for len(f.unflushed) > 0 && f.unflushed[0].lsn <= flushed {
		f.safe = f.unflushed[0].at
		f.unflushed = f.unflushed[1:]
	}
	if r := f.current; r != nil && !r.flushed && r.until != nil && r.lsn <= flushed {
		r.flushed, r.delivered = true, map[docKey]int64{}
	}
}
