package store

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Watch selects the documents that a watch sends.
type Watch struct {
	// Query finds the documents that exist when the watch begins; its order, limit and offset do
	// not matter. It is not used with From.
	Query Query
	// From continues an earlier watch: the watch sends the changes since then, and not the
	// documents that exist.
	From Cursor
	// Match reports whether a change concerns the watch. Its result must not change while a
	// document lives. Query must find each document that matches.
	Match func(*Change) bool
	// Visible reports whether a document that matches is sent as it is now; nil: all documents are.
	// A document that stops being visible is sent once more, as Gone. Query must find each visible
	// document.
	Visible func(*Change) bool
}

// WatchEvent is one message of a watch: a document, or the place that the feed has reached.
type WatchEvent struct {
	Kind   WatchEventKind
	Change *Change // nil for Progress and Synced
	Cursor Cursor  // a later watch may continue from here; "" if the place is not known
}

// WatchEventKind is the reason of a WatchEvent.
type WatchEventKind int

// The kinds of events.
const (
	Exists   WatchEventKind = iota // the document existed when the watch began
	Created                        // the first version of the document
	Updated                        // a later version; a watcher that missed the first may take it for Created
	Gone                           // the document was removed, or is not visible any more
	Synced                         // all documents that existed, or changed since From, have been sent
	Progress                       // nothing visible changed up to the cursor
)

// Watch sends the documents that exist (or, with From, the changes since then), then Synced, and
// then each change until ctx ends. It misses no change, sends none twice, and no document goes back
// to an older version. Of several changes of a document before Synced it sends only the last.
//
// Watch calls open once, before the first call of handle, when it knows that it can serve the
// watch; with From at the latest after a second. One goroutine calls handle. Watch always returns
// an error:
//
//   - an error of open or handle, unchanged.
//   - the cause of ctx, when ctx has ended.
//   - ErrTooSlow: handle is too slow and the queue of the watch is full. The caller may continue
//     from the last cursor.
//   - ErrGone: From is too old, or the database was restored. The caller begins again without From.
//   - ErrUnavailable, or another error of List, before Synced.
//
// The changes come from the Broadcast's follower and its memory. Only a watch that continues from a
// cursor older than that memory reads the database, once, on connections that followers do not use.
func (b *Broadcast) Watch(ctx context.Context, w Watch, open func() error, handle func(WatchEvent) error) error {
	v := &watcher{b: b, w: w, handle: handle, versions: map[docKey]int64{}, sent: map[docKey]bool{}}
	if w.From != "" {
		return v.resume(ctx, open)
	}
	sub := b.Subscribe(w.Match)
	defer sub.Close()
	if err := v.sendExisting(ctx, open); err != nil {
		return err
	}
	return v.follow(ctx, sub)
}

// watcher is the state of one watch. versions has the versions that it read from the database,
// until readAt, before it began to follow the feed. The feed may bring these versions again; the
// watcher drops the map when no further round can.
type watcher struct {
	b        *Broadcast
	w        Watch
	handle   func(WatchEvent) error
	versions map[docKey]int64
	readAt   time.Time
	from     position        // Watch.From: the watch sends no change that from sees
	sent     map[docKey]bool // the documents that the client has; only with Watch.Visible
}

// sendExisting sends the documents that exist, and Synced.
func (v *watcher) sendExisting(ctx context.Context, open func() error) error {
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
			if err := v.send(Exists, &Change{Document: d}, ""); err != nil {
				return err
			}
			v.versions[docKey{d.Kind, d.ID}] = d.Version
		}
		q.After = page.Next
	}
	v.readAt = time.Now()
	return v.handle(WatchEvent{Kind: Synced, Cursor: start})
}

// maxOpenDelay is how long a watch that continues waits for the database to report whether it can serve
// the cursor, before it calls open. Other watches may be before it in the queue for a connection.
const maxOpenDelay = time.Second

// resume continues an earlier watch: from memory if that has all changes since its cursor,
// otherwise from the database.
func (v *watcher) resume(ctx context.Context, open func() error) (err error) {
	if v.from, err = v.w.From.position(); err != nil {
		return err
	}
	open = sync.OnceValue(open)
	opening := time.AfterFunc(maxOpenDelay, func() { _ = open() })
	defer opening.Stop()
	if v.b.coversSince(v.from) {
		// Before Synced the watch sends all changes that were committed before Watch was called.
		if now, err := v.b.refresh(ctx); err != nil {
			return err
		} else if now.xmax < v.from.xmax {
			return fmt.Errorf("%w: it lies in the future of the database", ErrGone)
		}
	}
	sub, memory := v.b.resume(v.from, v.w.Match)
	defer sub.Close()
	if memory.known {
		err = v.resumeFromMemory(open, memory)
	} else {
		err = v.resumeFromDatabase(ctx, open)
	}
	if err != nil {
		return err
	}
	return v.follow(ctx, sub)
}

// resumeFromMemory sends the changes since the cursor from memory.
func (v *watcher) resumeFromMemory(open func() error, memory replayed) error {
	if err := open(); err != nil {
		return err
	}
	for _, c := range changesAfter(memory.rounds, v.from, v.w.Match) {
		if err := v.send(eventKindOf(c.Document), c, ""); err != nil {
			return err
		}
	}
	synced := WatchEvent{Kind: Synced, Cursor: v.w.From}
	if v.from.isCoveredBy(memory.safe) {
		synced.Cursor = memory.safe.cursor()
	}
	return v.handle(synced)
}

// resumeFromDatabase sends the changes since the cursor from the database. The first change shows that the database
// serves the cursor.
func (v *watcher) resumeFromDatabase(ctx context.Context, open func() error) error {
	cursor, err := v.b.s.catchUp(ctx, v.w.From, v.w.Query.kinds(), func(d Document) error {
		if err := open(); err != nil {
			return err
		}
		c := &Change{Document: d}
		if !v.w.Match(c) {
			return nil
		}
		v.versions[docKey{d.Kind, d.ID}] = d.Version
		return v.send(eventKindOf(d), c, "")
	})
	if err != nil {
		return err
	}
	if err := open(); err != nil {
		return err
	}
	v.readAt = time.Now()
	return v.handle(WatchEvent{Kind: Synced, Cursor: cursor})
}

// follow sends the changes of the subscription until it ends.
func (v *watcher) follow(ctx context.Context, sub *Subscription) error {
	for {
		rounds, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		for _, r := range rounds {
			if r.NewerThan(v.readAt) {
				v.versions = nil
			}
			if v.w.From != "" && !v.from.isCoveredBy(r.safe) {
				r.Cursor = "" // from there the watch would send again what its client has
			}
			for i, c := range r.Changes {
				if c.Version <= v.versions[docKey{c.Kind, c.ID}] || v.w.From != "" && v.from.sees(c.xid) {
					continue
				}
				cursor := Cursor("")
				if i == len(r.Changes)-1 {
					cursor = r.Cursor
				}
				if err := v.send(eventKindOf(c.Document), c, cursor); err != nil {
					return err
				}
			}
			if r.Cursor != "" {
				if err := v.handle(WatchEvent{Kind: Progress, Cursor: r.Cursor}); err != nil {
					return err
				}
			}
		}
	}
}

// send sends a visible document with its kind of event, and Gone for a document that the client may
// have and that is not visible. A watch that continues does not know which documents its client
// has: it sends Gone for each that is not visible.
func (v *watcher) send(kind WatchEventKind, c *Change, cursor Cursor) error {
	if v.w.Visible == nil {
		return v.handle(WatchEvent{Kind: kind, Change: c, Cursor: cursor})
	}
	key := docKey{c.Kind, c.ID}
	clientHas, known := v.sent[key]
	visible := !c.Removed && v.w.Visible(c)
	switch {
	case visible && kind == Updated && !clientHas && (known || v.w.From == ""):
		kind = Created
	case !visible && (clientHas || !known && v.w.From != ""):
		kind = Gone
	case !visible:
		return nil
	}
	if v.sent[key] = visible; c.Removed {
		delete(v.sent, key)
	}
	return v.handle(WatchEvent{Kind: kind, Change: c, Cursor: cursor})
}

// eventKindOf returns the kind of event for a change, without regard to visibility.
func eventKindOf(d Document) WatchEventKind {
	switch {
	case d.Removed:
		return Gone
	case d.Version == 1:
		return Created
	}
	return Updated
}
