package store

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Watch says what a watcher wants to see.
type Watch struct {
	// Query finds what exists; its order, limit and offset do not matter. It is not used with From.
	Query Query
	// From continues an earlier watch: changes since then are shown, and not what exists.
	From Cursor
	// Match says of a change whether it concerns the watch at all; what it depends on must not change while a document
	// lives. Query must find what it matches.
	Match func(*Change) bool
	// Shown says of a document that matches whether it is to be seen as it is now; nil: all are. One that was seen and
	// is to be seen no more is shown once more, as Gone. Query must find what is to be seen.
	Shown func(*Change) bool
}

// Sight is one thing that a watcher sees: a document, or only how far the feed has come.
type Sight struct {
	Kind   SightKind
	Change *Change // nil for Passed and Caught
	Cursor Cursor  // a later watch may continue from here; "" if that is not known
}

// SightKind says why a watcher sees something.
type SightKind int

const (
	Exists SightKind = iota // it did when the watch began
	Made                    // its first version
	Varied                  // a later one; whoever missed the first may take it for that
	Gone                    // it is removed, or not to be seen any more
	Caught                  // all that existed, or changed since From, has been shown
	Passed                  // nothing to be seen happened up to the cursor
)

// Watch shows what there is and then what changes, until ctx ends or see returns an error. No
// change is missed, none is shown twice, and no document goes back. It comes from the one follower
// and what that remembers; only a watch that continues from an older cursor reads the feed itself,
// once, on connections that followers do not use. It returns ErrTooSlow when see takes too long:
// the watch may be continued from the last cursor; and ErrGone when From is too old, or the
// database was restored.
//
// open is called once, when it is certain that the watch stands.
func (b *Broadcast) Watch(ctx context.Context, w Watch, open func() error, see func(Sight) error) error {
	v := &viewer{b: b, w: w, see: see, seen: map[docKey]int64{}, shown: map[docKey]bool{}}
	if w.From != "" {
		return v.resume(ctx, open)
	}
	sub := b.Subscribe(w.Match)
	defer sub.Close()
	if err := v.existing(ctx, open); err != nil {
		return err
	}
	return v.follow(ctx, sub)
}

// viewer is one watch. seen has the versions that it read from the database, until read, before it began to follow the
// feed, which may bring them again; after the rounds that can it is dropped.
type viewer struct {
	b     *Broadcast
	w     Watch
	see   func(Sight) error
	seen  map[docKey]int64
	read  time.Time
	from  position        // Watch.From: what it sees is not shown
	shown map[docKey]bool // whether the watcher has it; only with Watch.Shown
}

func (v *viewer) existing(ctx context.Context, open func() error) error {
	q := v.w.Query
	q.OrderBy, q.Limit, q.Offset, q.After, q.Count = nil, 500, 0, "", false
	var start Cursor
	for first := true; first || q.After != ""; first = false {
		page, err := v.b.s.List(ctx, q)
		if err != nil {
			return err
		}
		if first {
			if start = page.Cursor; start == "" {
				return ErrUnavailable
			}
			if err := open(); err != nil {
				return err
			}
		}
		for _, d := range page.Documents {
			if err := v.show(Exists, &Change{Document: d}, ""); err != nil {
				return err
			}
			v.seen[docKey{d.Kind, d.ID}] = d.Version
		}
		q.After = page.Next
	}
	v.read = time.Now()
	return v.see(Sight{Kind: Caught, Cursor: start})
}

// openAfter is how long the answer to a watch that continues waits for the database, which finds
// out whether the cursor is gone. Then the answer begins, also if many others are read before.
const openAfter = time.Second

// resume continues an earlier watch, from memory where that reaches back to its cursor.
func (v *viewer) resume(ctx context.Context, open func() error) (err error) {
	if v.from, err = v.w.From.position(); err != nil {
		return err
	}
	open = sync.OnceValue(open)
	opening := time.AfterFunc(openAfter, func() { _ = open() })
	defer opening.Stop()
	if v.b.remembers(v.from) {
		// "Caught" promises all that was committed before the watch began.
		if now, err := v.b.refresh(ctx); err != nil {
			return err
		} else if now.xmax < v.from.xmax {
			return fmt.Errorf("%w: it lies in the future of the database", ErrGone)
		}
	}
	sub, memory := v.b.resume(v.from, v.w.Match)
	defer sub.Close()
	if memory.known {
		err = v.recall(open, memory)
	} else {
		err = v.catchUp(ctx)
	}
	if err != nil {
		return err
	}
	return v.follow(ctx, sub)
}

// recall shows what changed since the cursor, from memory.
func (v *viewer) recall(open func() error, memory resumption) error {
	if err := open(); err != nil {
		return err
	}
	for _, c := range missed(memory.rounds, v.from, v.w.Match) {
		if err := v.show(kindOf(c.Document), c, ""); err != nil {
			return err
		}
	}
	caught := Sight{Kind: Caught, Cursor: v.w.From}
	if v.from.within(memory.safe) {
		caught.Cursor = memory.safe.cursor()
	}
	return v.see(caught)
}

// catchUp shows what changed since the cursor, from the database.
func (v *viewer) catchUp(ctx context.Context) error {
	cursor, err := v.b.s.catchUp(ctx, v.w.From, v.w.Query.kinds(), func(d Document) error {
		c := &Change{Document: d}
		if !v.w.Match(c) {
			return nil
		}
		v.seen[docKey{d.Kind, d.ID}] = d.Version
		return v.show(kindOf(d), c, "")
	})
	if err != nil {
		return err
	}
	v.read = time.Now()
	return v.see(Sight{Kind: Caught, Cursor: cursor})
}

func (v *viewer) follow(ctx context.Context, sub *Subscription) error {
	for {
		rounds, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		for _, r := range rounds {
			if r.NewerThan(v.read) {
				v.seen = nil
			}
			if v.w.From != "" && !v.from.within(r.safe) {
				r.Cursor = "" // it lies before the watch's own
			}
			for i, c := range r.Changes {
				if c.Version <= v.seen[docKey{c.Kind, c.ID}] || v.w.From != "" && v.from.sees(c.xid) {
					continue
				}
				cursor := Cursor("")
				if i == len(r.Changes)-1 {
					cursor = r.Cursor
				}
				if err := v.show(kindOf(c.Document), c, cursor); err != nil {
					return err
				}
			}
			if r.Cursor != "" {
				if err := v.see(Sight{Kind: Passed, Cursor: r.Cursor}); err != nil {
					return err
				}
			}
		}
	}
}

// show shows a document, or that it is not to be seen any more. Of a watch that continues nobody knows what its
// watcher has, so it is told of everything that is not to be seen.
func (v *viewer) show(kind SightKind, c *Change, cursor Cursor) error {
	if v.w.Shown == nil {
		return v.see(Sight{Kind: kind, Change: c, Cursor: cursor})
	}
	key := docKey{c.Kind, c.ID}
	has, known := v.shown[key]
	shown := !c.Removed && v.w.Shown(c)
	switch {
	case shown && kind == Varied && !has && (known || v.w.From == ""):
		kind = Made
	case !shown && (has || !known && v.w.From != ""):
		kind = Gone
	case !shown:
		return nil
	}
	if v.shown[key] = shown; c.Removed {
		delete(v.shown, key)
	}
	return v.see(Sight{Kind: kind, Change: c, Cursor: cursor})
}

func kindOf(d Document) SightKind {
	switch {
	case d.Removed:
		return Gone
	case d.Version == 1:
		return Made
	}
	return Varied
}
