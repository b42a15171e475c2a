package maestro

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// watchBundles streams changes of bundles. Most of what it sends comes from
// the process's one follower; only a watch that continues from an earlier
// cursor reads the store itself until it has caught up.
func (s *Server) watchBundles(w http.ResponseWriter, r *http.Request) error {
	l, err := parseList(r, watchFields)
	if err != nil {
		return err
	}
	query := r.URL.Query()
	cursor := store.Cursor(query.Get("cursor"))
	return rest.Watch(w, r, rest.WatchOptions{}, func(ctx context.Context, stream *rest.Stream) error {
		bw := &bundleWatch{server: s, stream: stream, list: l, consumer: query.Get("consumer"), id: query.Get("id"), seen: map[string]int64{}}
		sub := s.feed.subscribe(bw.match)
		defer sub.close()
		s.metrics.watchers.Inc()
		defer s.metrics.watchers.Dec()
		var err error
		if cursor == "" {
			err = bw.existing(ctx)
		} else {
			err = bw.catchUp(ctx, cursor)
		}
		if err != nil {
			return err
		}
		return bw.follow(ctx, sub)
	})
}

// bundleWatch is one watch. seen has the versions that it sent before it began
// to follow the feed, which may bring them again; after the rounds that can it
// is dropped.
type bundleWatch struct {
	server *Server
	stream *rest.Stream
	list   list
	// Further conditions; "" is none.
	consumer, id string
	seen         map[string]int64
	until        uint64
}

func (w *bundleWatch) match(c *change) bool {
	if c.doc.Kind != kindBundle {
		return false
	}
	if w.id != "" && c.doc.ID != w.id || w.consumer != "" && c.doc.Scope != w.consumer {
		return false
	}
	return matches(w.list.filter, c)
}

// existing sends what is there, page by page, and a bookmark.
func (w *bundleWatch) existing(ctx context.Context) error {
	q := w.list.query(kindBundle)
	q.OrderBy, q.Limit, q.Offset = nil, 500, 0
	q.Scope = w.consumer
	if w.id != "" {
		q.Where = and(q.Where, "d.id", w.id)
	}
	var start store.Cursor
	for first := true; first || q.After != ""; first = false {
		page, err := w.server.store.List(ctx, q)
		if err != nil {
			return err
		}
		if first {
			if start = page.Cursor; start == "" {
				return store.ErrUnavailable
			}
			if err := w.stream.Open(""); err != nil {
				return err
			}
		}
		for _, d := range page.Documents {
			if err := w.send(rest.Added, d, ""); err != nil {
				return err
			}
			w.seen[d.ID] = d.Version
		}
		q.After = page.Next
	}
	w.until = w.server.feed.published() + 1
	return w.stream.Send(rest.Event{Type: rest.Bookmark, Cursor: string(start)})
}

// errCaughtUp ends the store's own following.
var errCaughtUp = errors.New("caught up")

// catchUp sends what changed since the cursor. It returns with the end of the
// first run that had changes: until then there was nothing to send, and
// waiting costs one small read a second.
func (w *bundleWatch) catchUp(ctx context.Context, cursor store.Cursor) error {
	// A cursor that is gone is found at once and answered with 410. If it is
	// not, the client is told that its watch stands.
	opening := time.AfterFunc(100*time.Millisecond, func() { _ = w.stream.Open(string(cursor)) })
	defer opening.Stop()
	o := store.FollowOptions{Kinds: []store.Kind{kindBundle}, From: cursor}
	err := w.server.store.Follow(ctx, o, func(_ context.Context, b store.Batch) error {
		for _, d := range b.Documents {
			if !w.match(&change{doc: d}) {
				continue
			}
			if err := w.send(typeOf(d), d, ""); err != nil {
				return err
			}
			w.seen[d.ID] = d.Version
		}
		if !b.Last {
			return nil
		}
		w.until = w.server.feed.published() + 1
		if err := w.stream.Send(rest.Event{Type: rest.Bookmark, Cursor: string(b.Cursor)}); err != nil {
			return err
		}
		return errCaughtUp
	})
	if errors.Is(err, errCaughtUp) {
		return nil
	}
	return err
}

// follow sends what the feed brings.
func (w *bundleWatch) follow(ctx context.Context, sub *subscription) error {
	for {
		batches, err := sub.next(ctx)
		switch {
		case errors.Is(err, errTooSlow):
			return rest.Errorf(http.StatusServiceUnavailable, codeUnavailable, "the watch fell behind; continue from its last cursor")
		case errors.Is(err, errFeedGone):
			return store.ErrGone
		case err != nil:
			return err
		}
		for _, b := range batches {
			if b.round > w.until {
				w.seen = nil
			}
			for i, c := range b.changes {
				if c.doc.Version <= w.seen[c.doc.ID] {
					continue
				}
				cursor := store.Cursor("")
				if i == len(b.changes)-1 {
					cursor = b.cursor
				}
				if err := w.send(typeOf(c.doc), c.doc, cursor); err != nil {
					return err
				}
			}
			if b.cursor != "" {
				w.stream.Advance(string(b.cursor))
			}
		}
	}
}

// typeOf says what happened to a document. A first version is an addition;
// that a watch may have missed the first one is why the two are hints.
func typeOf(d store.Document) rest.EventType {
	switch {
	case d.Removed:
		return rest.Deleted
	case d.Version == 1:
		return rest.Added
	}
	return rest.Modified
}

func (w *bundleWatch) send(t rest.EventType, d store.Document, cursor store.Cursor) error {
	object, err := w.list.fields.Select(json.RawMessage(d.Wire))
	if err != nil {
		return err
	}
	return w.stream.Send(rest.Event{Type: t, Object: object, Cursor: string(cursor)})
}
