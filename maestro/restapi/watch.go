package restapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/store"
)

// watchBundles streams changes of bundles to a REST client until the client disconnects.
func (h *handlers) watchBundles(w http.ResponseWriter, r *http.Request) error {
	l, err := parseList(r, watchFields)
	if err != nil {
		return err
	}
	query := r.URL.Query()
	consumer, id, cursor := query.Get("consumer"), query.Get("id"), query.Get("cursor")
	watch := store.Watch{Query: l.query(bundle.Kind), From: store.Cursor(cursor), Match: func(c *store.Change) bool {
		return c.Kind == bundle.Kind && (id == "" || c.ID == id) && (consumer == "" || c.Scope == consumer) &&
			matches(l.filter, c)
	}}
	watch.Query.Scope = consumer
	if id != "" {
		watch.Query.Where = withEqual(watch.Query.Where, "d.id", id)
	}
	return rest.Watch(w, r, h.watchOptions(r), func(ctx context.Context, stream *rest.Stream) error {
		h.Watchers.Inc()
		defer h.Watchers.Dec()
		err := h.Feed.Watch(ctx, watch, func() error { return stream.Open(cursor) }, func(event store.WatchEvent) error {
			return sendWatchEvent(stream, event, l.fields)
		})
		if errors.Is(err, store.ErrTooSlow) {
			return rest.Errorf(http.StatusServiceUnavailable, apierror.CodeUnavailable,
				"the watch fell behind; continue from its last cursor")
		}
		return err
	})
}

// watchOptions makes the server's limit count a watch for the account of the caller.
func (h *handlers) watchOptions(r *http.Request) rest.WatchOptions {
	return rest.WatchOptions{Limits: h.Watches, Caller: store.ActorFrom(r.Context()).Account}
}

// eventTypes has the REST event type for each kind of watch event. A watch that missed a
// document's first version gets Modified for a document that it has not seen, so Added
// and Modified are hints.
var eventTypes = map[store.WatchEventKind]rest.EventType{
	store.Exists:  rest.Added,
	store.Created: rest.Added,
	store.Updated: rest.Modified,
	store.Gone:    rest.Deleted,
	store.Synced:  rest.Bookmark,
}

// sendWatchEvent sends one watch event to the client.
func sendWatchEvent(stream *rest.Stream, event store.WatchEvent, fields rest.Fields) error {
	if event.Kind == store.Progress {
		stream.Advance(string(event.Cursor))
		return nil
	}
	e := rest.Event{Type: eventTypes[event.Kind], Cursor: string(event.Cursor)}
	if event.Change != nil {
		var err error
		if e.Object, err = fields.Select(json.RawMessage(event.Change.Wire)); err != nil {
			return err
		}
	}
	return stream.Send(e)
}

// parseWatch reports whether the request is a watch.
func parseWatch(r *http.Request) (bool, error) {
	text := r.URL.Query().Get("watch")
	if text == "" {
		return false, nil
	}
	watch, err := strconv.ParseBool(text)
	if err != nil {
		return false, apierror.BadRequest("watch=%s is neither true nor false", text)
	}
	return watch, nil
}
