package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Batch is a part of a run. A run brings a follower from one state of the database to a later one; it is one batch,
// or several if it is long.
type Batch struct {
	// Documents that changed, each at most once in a run, tombstones included. There is no order to rely on.
	Documents []Document
	// Relist: the run is a list of all documents, not of changes. What the follower has and the whole run did not bring
	// is no more. A relist has no tombstones.
	Relist bool
	// First and Last batch of its run. A run that was interrupted starts again with First.
	First, Last bool
	// Cursor is where to follow on from after this batch, if it is the last one of its run;
	// otherwise after the run before. It may lie a moment before the batch, so that some of its
	// documents come again.
	Cursor Cursor

	xids []uint64 // of Documents
	at   position // where its run ends
	// since is when the snapshot was asked for at which its run begins: all documents were
	// committed later. Zero: not known.
	since time.Time
}

// FollowOptions are the parameters of Follow.
type FollowOptions struct {
	// Name makes the cursor durable: a later Follow by this name goes on where this one stopped, in another process,
	// too. One follower per name at a time. "" is not durable.
	Name string
	// Kinds to follow; none means all of the store's.
	Kinds []Kind
	// From is where to start; "" is the durable cursor, or if there is none, a relist. When From is gone Follow returns
	// ErrGone; without From it relists by itself.
	From Cursor
	// SaveEvery is how often a durable cursor is saved while changes come; default 500 ms. What was applied after the
	// last save before a crash comes again.
	SaveEvery time.Duration

	// passed is called when a run has ended, also if nothing changed, with where it ended and when
	// that snapshot was asked for; may be nil.
	onRunEnd func(position, time.Time)
	readNow  <-chan struct{} // a token begins a run at once; may be nil
}

// Follow calls apply with what changes, until ctx ends or apply returns an error, which it returns
// (for ctx, its cause).
//
// For each document that changed, apply gets a state at least as new as the change; states in between may be merged. A
// document never goes back to an older version, and a version does not come twice, while Follow runs; after a restart
// what was applied since the cursor comes again. The cursor moves on when all batches of a run were applied. apply is
// called from one goroutine, one batch at a time. Its documents are its own.
//
// Follow outlives the database: while it is down Follow retries with back-off.
func (s *Store) Follow(ctx context.Context, o FollowOptions, apply func(ctx context.Context, b Batch) error) error {
	f, err := s.newFollower(o, apply)
	if err != nil {
		return fmt.Errorf("following: %w", err)
	}
	sub, leave := s.hub.subscribe(f.wants)
	defer leave()
	defer f.save(context.WithoutCancel(ctx), true)
	backoff := time.Duration(0)
	for {
		started := time.Now()
		err := f.run(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			backoff = 0
			if o.onRunEnd != nil {
				o.onRunEnd(f.at, f.asked)
			}
		case errors.Is(err, errReconnected):
			f.rewind()
			continue
		case errors.Is(err, errApply):
			return errors.Unwrap(err)
		case errors.Is(err, errNotOurs):
			if err := s.adopt(ctx); err != nil {
				s.log.Warn("a restored database cannot be taken over yet", "error", err)
				backoff = next(backoff)
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
			backoff = next(backoff)
			s.log.Warn("a follower cannot read", "follower", o.Name, "error", err, "retry", backoff)
		}
		if backoff > 0 {
			if !pause(ctx, backoff) {
				return context.Cause(ctx)
			}
			continue
		}
		f.save(ctx, false)
		if wait := s.opts.FeedInterval - time.Since(started); wait > 0 && !pause(ctx, wait) {
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

// catchUp brings each document that changed since the cursor, once, and returns the cursor to go on
// from. It reads on the watchers' connections, at no more than ReplayConns at a time, and does not
// hold one while show is at work.
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
	f.feed = s.watchers
	for backoff := time.Duration(0); ; backoff = next(backoff) {
		err := f.run(ctx)
		switch {
		case err == nil:
			return f.safe.cursor(), nil
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case errors.Is(err, errApply):
			return "", errors.Unwrap(err)
		case errors.Is(err, errNotOurs): // its followers take it over
			return "", fmt.Errorf("%w: the database was restored", ErrGone)
		case errors.Is(err, ErrGone), errors.Is(err, ErrInvalid):
			return "", err
		}
		f.rewind()
		if backoff > 0 {
			s.log.Warn("a watch cannot read what it missed", "error", err, "retry", backoff)
		}
		if !pause(ctx, backoff) {
			return "", context.Cause(ctx)
		}
	}
}

func next(backoff time.Duration) time.Duration {
	return min(max(2*backoff, 20*time.Millisecond), time.Second)
}

// applyError marks an error of the caller's apply.
type applyError struct{ err error }

var errApply = errors.New("apply")

func (e *applyError) Error() string        { return e.err.Error() }
func (e *applyError) Unwrap() error        { return e.err }
func (e *applyError) Is(target error) bool { return target == errApply }

// follower is the state of one Follow. Only Follow's goroutine touches it.
type follower struct {
	s     *Store
	feed  *reader
	o     FollowOptions
	wants []Kind
	kinds []string
	apply func(context.Context, Batch) error

	loaded  bool      // the durable cursor was looked for
	at      position  // all before it was applied; no snapshot: nothing was
	asked   time.Time // when the latest run's snapshot was asked for
	atAsked time.Time // when that of at was; zero: not known
	cur     *run      // a run that was begun

	// A cursor is only safe when what it saw is on disk. A transaction that was rolled back leaves
	// a trace in the WAL that nobody waits for; when the server crashes before that is written, its
	// id is given out again, to a transaction that the cursor would take for seen. So after an
	// interruption a follower goes on from the last safe position, and skips what it knows it has
	// delivered.
	safe      position
	unflushed []unflushedRun
	readAt    time.Time        // when the last read began
	skip      map[docKey]int64 // versions that will come again

	dirty   bool      // something was applied since the durable cursor was saved
	saved   position  // the durable cursor
	savedAt time.Time // when
}

type docKey struct {
	kind Kind
	id   string
}

// unflushedRun is a position that is safe when the WAL is on disk up to lsn.
type unflushedRun struct {
	at        position
	lsn       uint64
	delivered map[docKey]int64 // in the run that ended there
}

// run is a run under way.
type run struct {
	relist    bool
	until     *position
	lsn       uint64
	flushed   bool             // until is safe
	delivered map[docKey]int64 // until it is flushed
	early     map[docKey]int64 // delivered by a relist although until does not see it: it will come again
	after     place
	began     bool // a batch was delivered
}

func (s *Store) newFollower(o FollowOptions, apply func(context.Context, Batch) error) (*follower, error) {
	if o.SaveEvery == 0 {
		o.SaveEvery = 500 * time.Millisecond
	}
	f := &follower{s: s, feed: s.followers, o: o, apply: apply, wants: o.Kinds}
	if len(f.wants) == 0 {
		for k := range s.kinds {
			f.wants = append(f.wants, k)
		}
	}
	for _, k := range f.wants {
		if _, err := s.kind(k); err != nil {
			return nil, err
		}
		f.kinds = append(f.kinds, string(k))
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

// run does one run, from where the follower is to the present, or goes on with one that was interrupted.
func (f *follower) run(ctx context.Context) error {
	if !f.loaded {
		if err := f.load(ctx); err != nil {
			return err
		}
	}
	if f.cur == nil {
		f.cur = &run{relist: f.at.snapshot == "", delivered: map[docKey]int64{}, early: map[docKey]int64{}}
	}
	for r := f.cur; ; {
		c, err := f.read(ctx, r)
		if err != nil {
			return err
		}
		if hook := f.s.opts.Hooks.AfterChunk; hook != nil {
			hook()
		}
		if r.until == nil {
			r.until, r.lsn, f.asked = &c.at, c.inserted, c.began
		}
		f.noteFlushed(c.flushed)
		r.after = c.last()
		if !c.more && r.relist && !r.flushed && f.feed.flush(ctx, trust(f.readAt)) == nil {
			f.noteFlushed(r.lsn) // the first cursor has none before it to fall back to
		}
		if err := f.deliver(ctx, r, c); err != nil {
			return err
		}
		if !c.more {
			return nil
		}
	}
}

func (f *follower) read(ctx context.Context, r *run) (c chunk, err error) {
	var t trust
	if len(f.unflushed) > 0 || r.until != nil && !r.flushed {
		t = trust(f.readAt)
	}
	defer func() {
		if err == nil {
			f.readAt = c.began
		}
	}()
	if r.relist {
		c, err := f.feed.everything(ctx, t, f.kinds, r.after, f.feed.documents)
		if err == nil && r.until != nil && r.until.incarnation != c.at.incarnation {
			err = fmt.Errorf("%w: the database was restored meanwhile", ErrGone)
		}
		return c, err
	}
	return f.feed.changes(ctx, t, f.kinds, f.at, r.until, r.after, f.feed.documents)
}

// deliver applies a chunk, and ends the run when it was its last.
func (f *follower) deliver(ctx context.Context, r *run, c chunk) error {
	b := Batch{Relist: r.relist, First: !r.began, Last: !c.more, at: *r.until, since: f.atAsked}
	for i, d := range c.docs {
		key := docKey{d.Kind, d.ID}
		if !r.flushed {
			r.delivered[key] = d.Version
		}
		if version, ok := f.skip[key]; ok && version == d.Version {
			continue
		}
		if r.relist && !r.until.sees(c.xids[i]) {
			r.early[key] = d.Version
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
		f.at, f.atAsked, f.skip, f.cur = *r.until, f.asked, r.early, nil
	}
	return nil
}

// settle takes note of how far the WAL is on disk.
func (f *follower) noteFlushed(flushed uint64) {
	for len(f.unflushed) > 0 && f.unflushed[0].lsn <= flushed {
		f.safe = f.unflushed[0].at
		f.unflushed = f.unflushed[1:]
	}
	if r := f.cur; r != nil && !r.flushed && r.until != nil && r.lsn <= flushed {
		r.flushed, r.delivered = true, map[docKey]int64{}
	}
}

// rewind goes back, after an interruption which may have been a crash, to what is known to be safe.
func (f *follower) rewind() {
	if f.cur != nil && f.cur.flushed {
		return // the run goes on where it was; its beginning is safe, too
	}
	skip := map[docKey]int64{}
	for k, v := range f.skip {
		skip[k] = v
	}
	for _, u := range f.unflushed {
		for k, v := range u.delivered {
			skip[k] = v
		}
	}
	if f.cur != nil {
		for k, v := range f.cur.delivered {
			skip[k] = v
		}
	}
	if f.safe.snapshot == "" {
		skip = nil // a relist is always whole
	}
	f.at, f.atAsked, f.skip, f.unflushed, f.cur = f.safe, time.Time{}, skip, nil, nil
}

// restart forgets everything, so that the next run is a relist.
func (f *follower) restart() {
	f.at, f.atAsked, f.safe, f.skip, f.unflushed, f.cur, f.loaded = position{}, time.Time{}, position{}, nil, nil, nil,
		true
}

func (f *follower) load(ctx context.Context) error {
	if f.o.Name != "" {
		var text Cursor
		err := f.s.read(ctx, f.s.pool, func(ctx context.Context, c *pgx.Conn) error {
			return c.QueryRow(ctx, `select coalesce((select cursor from follower where name = $1), '')`, f.o.Name).Scan(
				&text)
		})
		if err != nil {
			return err
		}
		if text != "" {
			if f.at, err = text.position(); err != nil {
				return err
			}
			f.safe, f.saved = f.at, f.at
		}
	}
	f.loaded, f.savedAt = true, time.Now()
	return nil
}

const saveSQL = `insert into follower (name, cursor) values ($1, $2) on conflict (name) do update set cursor = $2, updated_at = now()`

// save keeps the durable cursor. Its commit puts all WAL before it on disk, so the exact position is safe.
func (f *follower) save(ctx context.Context, final bool) {
	if f.o.Name == "" || f.at.snapshot == "" || f.at.snapshot == f.saved.snapshot {
		return
	}
	wait := f.o.SaveEvery
	if !f.dirty {
		wait = time.Minute // nothing for us, but what others removed may be compacted one day
	}
	if final && !f.dirty || !final && time.Since(f.savedAt) < wait {
		return
	}
	err := f.s.read(ctx, f.s.pool, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, saveSQL, f.o.Name, string(f.at.cursor()))
		return err
	})
	if err != nil {
		f.s.log.Warn("a follower's cursor was not saved; changes will come again after a restart", "follower", f.o.Name,
			"error", err)
		return
	}
	f.dirty, f.saved, f.savedAt = false, f.at, time.Now()
}
