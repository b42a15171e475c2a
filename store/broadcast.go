package store

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Change is one document of the feed, handed to many.
type Change struct {
	Document
	xid  uint64 // of the transaction that wrote it
	once sync.Once
	memo any
}

// Memo returns what f makes of the document, the first time for all who share the change: decoding it, for example.
func (c *Change) Memo(f func(Document) any) any {
	c.once.Do(func() { c.memo = f(c.Document) })
	return c.memo
}

// Round is what the feed brought at once. Cursor is where it stands after it, "" if that is not known.
type Round struct {
	Changes []*Change
	Cursor  Cursor
	Number  uint64 // counts them

	at    position  // what it has brought, with the other batches of its run
	since time.Time // Batch.since
	safe  position  // Cursor, taken apart
	size  int       // in bytes, about
}

// NewerThan says that all of the round's changes were committed after t. What was read from the store before t does not
// have them. False also if that is not known.
func (r Round) NewerThan(t time.Time) bool { return r.since.After(t) }

// ErrTooSlow ends a subscription that does not keep up. It may be made again.
var ErrTooSlow = errors.New("the subscriber is too slow")

// Broadcast is one follower of the store, fanned out in memory to all subscribers. It begins at the
// present, and remembers recent changes for watches that continue from a cursor. Each subscriber
// has a bounded queue, and one that is too slow is cut off, so it delays nobody. Use NewBroadcast,
// Begin, and Run.
type Broadcast struct {
	s       *Store
	observe func(Round)
	from    Cursor        // where Run begins; "": nobody knows yet
	nudge   chan struct{} // a token makes the follower read at once

	mu       sync.Mutex
	subs     map[*Subscription]struct{}
	round    uint64
	standing bool
	replay   replay
	safe     position      // the last round's that has one
	now      position      // where the feed stands
	asked    time.Time     // since when the database may have more than that
	ran      chan struct{} // closed at the end of the follower's next run; nil while nobody waits for it
}

// NewBroadcast returns a broadcast that brings nothing until Run. observe, if not nil, is called
// with each round, before the subscribers get it.
func (s *Store) NewBroadcast(observe func(Round)) *Broadcast {
	return &Broadcast{s: s, observe: observe, nudge: make(chan struct{}, 1), subs: map[*Subscription]struct{}{},
		replay: replay{maxChanges: s.opts.ReplayChanges, maxBytes: s.opts.ReplayBytes}}
}

// Begin takes the present for where Run begins. Whoever subscribes after it, and then reads the store, misses nothing,
// also before Run.
func (b *Broadcast) Begin(ctx context.Context) error {
	from, err := b.s.Present(ctx)
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
	b.safe, b.now = at, at
	return nil
}

// Run follows the store until ctx ends. Where it cannot go on it begins at the present, and ends all subscriptions that
// were made before: nobody knows what they missed.
func (b *Broadcast) Run(ctx context.Context) error {
	for {
		var err error
		if b.from == "" {
			if err = b.Begin(ctx); err == nil {
				b.Fail(ErrGone)
			}
		}
		if err == nil {
			b.stand(true)
			o := FollowOptions{From: b.from, passed: b.passed, nudge: b.nudge}
			err = b.s.Follow(ctx, o, func(_ context.Context, batch Batch) error {
				b.Publish(batch)
				return nil
			})
			b.from = ""
		}
		b.stand(false)
		if ctx.Err() != nil {
			return nil
		}
		b.s.log.Warn("the feed is followed anew", "error", err)
		if !pause(ctx, 200*time.Millisecond) {
			return nil
		}
	}
}

// Check is a readiness check: the feed is followed.
func (b *Broadcast) Check(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.standing {
		return errors.New("the feed is not followed yet")
	}
	return nil
}

func (b *Broadcast) stand(yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.standing = yes
}

// Present is the feed's present place.
func (s *Store) Present(ctx context.Context) (Cursor, error) {
	for kind := range s.kinds {
		page, err := s.List(ctx, Query{Kind: kind, Limit: 1, WireOnly: true})
		if err == nil && page.Cursor == "" {
			err = ErrUnavailable
		}
		return page.Cursor, err
	}
	return "", errors.New("the store has no kinds")
}

// Limits of what waits for one subscriber.
const (
	queueChanges = 10_000
	queueBytes   = 64 << 20
)

// Subscription is one subscriber's queue.
type Subscription struct {
	b     *Broadcast
	match func(*Change) bool
	woken chan struct{} // holds a token when there is something to take
	ended chan struct{} // closed when there is a reason

	mu      sync.Mutex
	queue   []Round
	changes int
	bytes   int
	err     error
}

// Subscribe begins a subscription to the changes that match. What was brought before is not in it. match is called by
// the feed's goroutine and must be quick.
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

// resumption is what a watch that continues from a cursor gets from memory.
type resumption struct {
	known  bool     // the rounds have everything that changed since the cursor
	rounds []Round  // before those of the subscription
	safe   position // a cursor that sees no more than the rounds have
}

// remembers says that memory reaches back to the cursor, as of now.
func (b *Broadcast) remembers(cursor position) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, known := b.replay.since(cursor)
	return known
}

// resume subscribes, and returns what was brought before since the cursor.
func (b *Broadcast) resume(cursor position, match func(*Change) bool) (*Subscription, resumption) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := resumption{safe: b.safe}
	r.rounds, r.known = b.replay.since(cursor)
	return b.subscribe(match), r
}

// passed takes note that a run of the follower has ended.
func (b *Broadcast) passed(at position, asked time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now, b.asked = at, asked
	if b.ran != nil {
		close(b.ran)
		b.ran = nil
	}
}

// refresh returns when the feed has brought all that was committed before the call, and where it stands. However many
// callers there are, they wait for the same run.
func (b *Broadcast) refresh(ctx context.Context) (position, error) {
	called := time.Now()
	for {
		b.mu.Lock()
		if b.asked.After(called) {
			defer b.mu.Unlock()
			return b.now, nil
		}
		if b.ran == nil {
			b.ran = make(chan struct{})
		}
		ran := b.ran
		b.mu.Unlock()
		select {
		case b.nudge <- struct{}{}:
		default:
		}
		select {
		case <-ran:
		case <-ctx.Done():
			return position{}, context.Cause(ctx)
		}
	}
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	delete(s.b.subs, s)
}

// Publish hands a batch to all subscribers. Run does that; it is exported for tests of what subscribers make of it.
func (b *Broadcast) Publish(batch Batch) {
	r := Round{Changes: make([]*Change, len(batch.Documents)), Cursor: batch.Cursor, at: batch.at, since: batch.since}
	for i, d := range batch.Documents {
		xid := noLimit // no cursor sees it
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
	b.round++
	r.Number = b.round
	b.replay.add(r)
	if r.safe.snapshot != "" {
		b.safe = r.safe
	}
	for s := range b.subs {
		s.offer(r)
	}
}

func sizeOf(d Document) int { return len(d.Wire) + len(d.Spec) + len(d.Status) }

// Fail ends all subscriptions, because the feed cannot be continued. Run does that; it is exported for tests of what
// subscribers make of it.
func (b *Broadcast) Fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.subs {
		s.fail(err)
	}
}

func (s *Subscription) offer(r Round) {
	mine := Round{Cursor: r.Cursor, Number: r.Number, at: r.at, since: r.since, safe: r.safe}
	size := 0
	for _, c := range r.Changes {
		if s.match(c) {
			mine.Changes = append(mine.Changes, c)
			size += sizeOf(c.Document)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return
	case len(mine.Changes) == 0:
		if mine.Cursor == "" {
			return
		}
		if n := len(s.queue); n > 0 && len(s.queue[n-1].Changes) == 0 {
			s.queue = s.queue[:n-1] // an empty one says where the feed stands, and the latest says all
		}
		s.queue = append(s.queue, mine)
	case s.changes+len(mine.Changes) > queueChanges || s.bytes+size > queueBytes && s.changes > 0:
		s.stop(ErrTooSlow)
	default:
		s.queue = append(s.queue, mine)
		s.changes += len(mine.Changes)
		s.bytes += size
	}
	s.wake()
}

func (s *Subscription) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.stop(err)
	}
	s.wake()
}

func (s *Subscription) stop(err error) {
	s.err = err
	s.queue, s.changes, s.bytes = nil, 0, 0
	close(s.ended)
}

func (s *Subscription) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// Woken has a token when there is something to take.
func (s *Subscription) Woken() <-chan struct{} { return s.woken }

// Ended is closed when the subscription has ended, for Reason.
func (s *Subscription) Ended() <-chan struct{} { return s.ended }

// Reason is why the subscription ended, nil while it has not: ErrTooSlow, or ErrGone when the database was restored.
func (s *Subscription) Reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Take returns what waits, or the reason why the subscription ended.
func (s *Subscription) Take() ([]Round, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	q := s.queue
	s.queue, s.changes, s.bytes = nil, 0, 0
	return q, nil
}

// Next waits for what comes and takes it. Its error is Take's, or ctx's cause.
func (s *Subscription) Next(ctx context.Context) ([]Round, error) {
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-s.woken:
		return s.Take()
	}
}
