package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"atoll.dev/internal/pause"
)

// Change is one changed document. All subscribers of a Broadcast share it and must not modify it.
type Change struct {
	Document
	xid  uint64 // of the transaction that wrote it
	once sync.Once
	memo any
}

// Memo returns the result of f for the document, for example its decoded form. Only the first call
// on a change calls its f; other calls return that result, also of another f. Several goroutines
// may call Memo.
func (c *Change) Memo(f func(Document) any) any {
	c.once.Do(func() { c.memo = f(c.Document) })
	return c.memo
}

// Round has the changes of one read of the feed. Cursor is the place after these; "" if it is not
// known.
type Round struct {
	Changes []*Change
	Cursor  Cursor
	Number  uint64 // counts the rounds of a Broadcast

	at             position  // where the run of the round ends
	committedAfter time.Time // Batch.committedAfter
	safe           position  // Cursor, parsed
	size           int       // in bytes, about
}

// NewerThan reports whether all changes of the round were committed after t, so that no read of the
// store before t returned them. It is false, too, when the time of the commits is not known.
func (r Round) NewerThan(t time.Time) bool { return r.committedAfter.After(t) }

// ErrTooSlow ends a subscription whose queue is full. The subscriber may subscribe again.
var ErrTooSlow = errors.New("the subscriber is too slow")

// Broadcast is one follower of the store that sends the changes to all subscribers of this process.
// It begins at the present and keeps recent changes in memory for watches that continue from a
// cursor. Each subscriber has a bounded queue; a subscription whose queue is full ends, so a slow
// subscriber delays no other. Make it with NewBroadcast, then call Begin and Run, each once.
// Several goroutines may call the other methods, also before Run.
type Broadcast struct {
	s       *Store
	observe func(Round)
	from    Cursor        // where Run begins; "": not determined yet
	readNow chan struct{} // a token makes the follower read at once

	mu          sync.Mutex
	subs        map[*Subscription]struct{}
	rounds      uint64
	following   bool
	replay      replay
	safe        position      // the cursor of the last round that has one
	reached     position      // up to which the follower has read the feed
	requestedAt time.Time     // when the follower requested the snapshot of now
	runEnded    chan struct{} // closed at the end of the follower's next run; nil while no goroutine waits for it
}

// NewBroadcast returns a Broadcast that reads nothing until Run. It calls observe, if not nil, with
// each round, before the subscribers get it.
func (s *Store) NewBroadcast(observe func(Round)) *Broadcast {
	return &Broadcast{s: s, observe: observe, readNow: make(chan struct{}, 1), subs: map[*Subscription]struct{}{},
		replay: replay{maxChanges: s.opts.ReplayChanges, maxBytes: s.opts.ReplayBytes}}
}

// Begin makes Run begin at the present place of the feed. A subscriber that subscribes after Begin
// and then reads the store misses no change, although Run may not have begun. It returns the error
// of CurrentCursor.
func (b *Broadcast) Begin(ctx context.Context) error {
	from, err := b.s.CurrentCursor(ctx)
	if err != nil {
		return err
	}
	at, err := from.position()
	if err != nil {
		return err
	}
	b.from = from
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replay.begin(at)
	b.safe, b.reached = at, at
	return nil
}

// Run follows the store until ctx ends, and then returns nil. When the database cannot serve the
// place where Run is any more, Run continues at the present place and ends all subscriptions with
// ErrGone, because it cannot know the changes in between.
func (b *Broadcast) Run(ctx context.Context) error {
	for {
		var err error
		if b.from == "" {
			if err = b.Begin(ctx); err == nil {
				b.Fail(ErrGone)
			}
		}
		if err == nil {
			b.noteFollowing()
			o := FollowOptions{From: b.from, onRunEnd: b.noteRunEnd, readNow: b.readNow}
			err = b.s.Follow(ctx, o, func(_ context.Context, batch Batch) error {
				b.Publish(batch)
				return nil
			})
			b.from = ""
		}
		b.noteStopped()
		if ctx.Err() != nil {
			return nil
		}
		b.s.log.Warn("following the feed failed; starting again", "error", err)
		if !pause.For(ctx, 200*time.Millisecond) {
			return nil
		}
	}
}

// Check is a readiness check. It returns nil while Run follows the feed.
func (b *Broadcast) Check(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.following {
		return errors.New("the process does not follow the feed of its database")
	}
	return nil
}

// noteFollowing records that Run follows the feed.
func (b *Broadcast) noteFollowing() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.following = true
}

// noteStopped records that Run does not follow the feed.
func (b *Broadcast) noteStopped() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.following = false
}

// CurrentCursor returns the present place of the feed, or ErrUnavailable when the database cannot
// determine it.
func (s *Store) CurrentCursor(ctx context.Context) (Cursor, error) {
	for kind := range s.kinds {
		page, err := s.List(ctx, Query{Kind: kind, Limit: 1, WireOnly: true})
		if err == nil && page.Cursor == "" {
			err = ErrUnavailable
		}
		return page.Cursor, err
	}
	return "", errors.New("the store has no kinds")
}

// Subscribe begins a subscription to the changes that match, from the next round on. The goroutine
// of the feed calls match, which must be quick.
func (b *Broadcast) Subscribe(match func(*Change) bool) *Subscription {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.subscribe(match)
}

func (b *Broadcast) subscribe(match func(*Change) bool) *Subscription {
	s := &Subscription{b: b, match: match, woken: make(chan struct{}, 1), ended: make(chan struct{})}
	b.subs[s] = struct{}{}
	return s
}

// replayed is the part of the Broadcast's memory for a watch that continues from a cursor.
type replayed struct {
	known  bool     // the rounds have all changes since the cursor
	rounds []Round  // before those of the subscription
	safe   position // a cursor that sees no more than the rounds have
}

// coversSince reports whether memory has all changes since the cursor.
func (b *Broadcast) coversSince(cursor position) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, known := b.replay.since(cursor)
	return known
}

// resume subscribes and returns the rounds since the cursor that came before the subscription.
func (b *Broadcast) resume(cursor position, match func(*Change) bool) (*Subscription, replayed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := replayed{safe: b.safe}
	r.rounds, r.known = b.replay.since(cursor)
	return b.subscribe(match), r
}

// noteRunEnd records the end of a run of the follower, and wakes the callers of refresh.
func (b *Broadcast) noteRunEnd(at position, requestedAt time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reached, b.requestedAt = at, requestedAt
	if b.runEnded != nil {
		close(b.runEnded)
		b.runEnded = nil
	}
}

// refresh waits until the follower has read all changes that were committed before the call, and
// returns the place up to which it has read. Concurrent callers wait for the same run. It returns
// the cause of ctx when ctx ends first.
func (b *Broadcast) refresh(ctx context.Context) (position, error) {
	called := time.Now()
	for {
		b.mu.Lock()
		if b.requestedAt.After(called) {
			defer b.mu.Unlock()
			return b.reached, nil
		}
		if b.runEnded == nil {
			b.runEnded = make(chan struct{})
		}
		ran := b.runEnded
		b.mu.Unlock()
		select {
		case b.readNow <- struct{}{}:
		default:
		}
		select {
		case <-ran:
		case <-ctx.Done():
			return position{}, context.Cause(ctx)
		}
	}
}

// Close ends the subscription: its queue gets no further rounds. It may be called more than once.
func (s *Subscription) Close() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	delete(s.b.subs, s)
}

// Publish adds a batch to the memory and to the queues of all subscribers. Run calls it; it is
// exported for tests of subscribers.
func (b *Broadcast) Publish(batch Batch) {
	r := Round{Changes: make([]*Change, len(batch.Documents)), Cursor: batch.Cursor, at: batch.at,
		committedAfter: batch.committedAfter}
	for i, d := range batch.Documents {
		xid := maxXID // no cursor sees it
		if i < len(batch.xids) {
			xid = batch.xids[i]
		}
		r.Changes[i] = &Change{Document: d, xid: xid}
		r.size += sizeOf(d)
	}
	if safe, err := batch.Cursor.position(); err == nil {
		r.safe = safe
	}
	if b.observe != nil {
		b.observe(r)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rounds++
	r.Number = b.rounds
	b.replay.add(r)
	if r.safe.snapshot != "" {
		b.safe = r.safe
	}
	for s := range b.subs {
		s.enqueue(r)
	}
}

// sizeOf returns about how many bytes a document takes in memory.
func sizeOf(d Document) int { return len(d.Wire) + len(d.Spec) + len(d.Status) }

// Fail ends all subscriptions with an error. Run calls it; it is exported for tests of subscribers.
func (b *Broadcast) Fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.subs {
		s.fail(err)
	}
}
