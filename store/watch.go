package store

import (
	"context"
	"errors"
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

// Watch shows what there is and then what changes, until ctx ends or see returns an error. No change is missed, none is
// shown twice, and no document goes back. Most of it comes from the one follower; only a watch that continues reads the
// feed itself until it has caught up. It returns ErrTooSlow when see takes too long: the watch may be continued from the
// last cursor; and ErrGone when From is too old, or the database was restored.
//
// open is called once, when it is certain that the watch stands.
func (b *Broadcast) Watch(ctx context.Context, w Watch, open func() error, see func(Sight) error) error {
	sub := b.Subscribe(w.Match)
	defer sub.Close()
	v := &viewer{b: b, w: w, see: see, seen: map[docKey]int64{}, shown: map[docKey]bool{}}
	var err error
	if w.From == "" {
		err = v.existing(ctx, open)
	} else {
		err = v.catchUp(ctx, open)
	}
	if err != nil {
		return err
	}
	return v.follow(ctx, sub)
}

// viewer is one watch. seen has the versions that it showed before it began to follow the feed, which may bring them
// again; after the rounds that can it is dropped.
type viewer struct {
	b     *Broadcast
	w     Watch
	see   func(Sight) error
	seen  map[docKey]int64
	until uint64
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
	v.until = v.b.Published() + 1
	return v.see(Sight{Kind: Caught, Cursor: start})
}

// errCaughtUp ends the store's own following.
var errCaughtUp = errors.New("caught up")

// openAfter is how long a cursor that is gone takes at most to be found out. One that is not may have to wait longer
// for something to show.
const openAfter = 100 * time.Millisecond

// catchUp shows what changed since the cursor. It returns with the end of the first run that had changes: until then
// there was nothing to show, and waiting costs one small read a second.
func (v *viewer) catchUp(ctx context.Context, open func() error) error {
	opening := time.AfterFunc(openAfter, func() { _ = open() })
	defer opening.Stop()
	o := FollowOptions{Kinds: v.w.Query.kinds(), From: v.w.From}
	err := v.b.s.Follow(ctx, o, func(_ context.Context, batch Batch) error {
		for _, d := range batch.Documents {
			c := &Change{Document: d}
			if !v.w.Match(c) {
				continue
			}
			if err := v.show(kindOf(d), c, ""); err != nil {
				return err
			}
			v.seen[docKey{d.Kind, d.ID}] = d.Version
		}
		if !batch.Last {
			return nil
		}
		v.until = v.b.Published() + 1
		if err := v.see(Sight{Kind: Caught, Cursor: batch.Cursor}); err != nil {
			return err
		}
		return errCaughtUp
	})
	if errors.Is(err, errCaughtUp) {
		return nil
	}
	return err
}

func (v *viewer) follow(ctx context.Context, sub *Subscription) error {
	for {
		rounds, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		for _, r := range rounds {
			if r.Number > v.until {
				v.seen = nil
			}
			for i, c := range r.Changes {
				if c.Version <= v.seen[docKey{c.Kind, c.ID}] {
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
