package clm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	api "atoll.dev/api/clm"
	"atoll.dev/clm/status"
	"atoll.dev/internal/rest"
	"atoll.dev/search"
	"atoll.dev/store"
)

// watch streams the changes of a list. A resource that stops matching the search is sent
// as deleted.
func (c *collection) watch(w http.ResponseWriter, r *http.Request, q store.Query, filter *search.Filter, v view) error {
	caller := callerOf(r.Context())
	cursor := r.URL.Query().Get("cursor")
	refType, target, err := referring(r.URL.Query())
	if err != nil {
		return err
	}
	watch := store.Watch{Query: q, From: store.Cursor(cursor), Match: func(change *store.Change) bool {
		return hasKind(q, change.Kind) && (q.Scope == "" || change.Scope == q.Scope) &&
			(caller.Tenancy == nil || caller.sees(rowOf(change).spec.Tenancy))
	}}
	if !filter.Empty() || refType != "" {
		watch.Visible = func(change *store.Change) bool {
			row := rowOf(change)
			return filter.Match(row.field) && (refType == "" || row.refers(refType, target))
		}
	}
	return rest.Watch(w, r, c.s.watchOptions(r), func(ctx context.Context, stream *rest.Stream) error {
		err := c.s.feed.Watch(ctx, watch, func() error { return stream.Open(cursor) }, func(sight store.WatchEvent) error {
			return sendEvent(stream, sight, v)
		})
		if errors.Is(err, store.ErrTooSlow) {
			return rest.Errorf(http.StatusServiceUnavailable, codeUnavailable,
				"the watch fell behind; continue from its last cursor")
		}
		return err
	})
}

// watchOptions returns the options by which the server counts a watch for its caller.
func (s *Server) watchOptions(r *http.Request) rest.WatchOptions {
	return rest.WatchOptions{Limits: s.watches, Caller: callerOf(r.Context()).watcher()}
}

// watcher returns the key by which the limit of watches counts a caller: the account of the caller, or of
// the principal for whom a service of the region calls, otherwise the holder of the caller's token, otherwise
// the caller's name. A name that the holder of a token chooses by a header does not count: a new name for each
// watch would evade the limit. It is "" for a service of the region that calls for itself: its watches are not
// limited, because the region's work needs them.
func (c Caller) watcher() string {
	switch {
	case c.Account != "":
		return "account " + string(c.Account)
	case c.Service:
		return ""
	}
	tenant, err := tenancyScope(c.Tenancy)
	if err != nil {
		tenant = ""
	}
	if c.Holder != "" {
		return "holder " + c.Holder + " " + tenant
	}
	return fmt.Sprintf("caller %q %s", c.Name, tenant)
}

func hasKind(q store.Query, kind store.Kind) bool {
	if len(q.Kinds) == 0 {
		return q.Kind == kind
	}
	for _, k := range q.Kinds {
		if k == kind {
			return true
		}
	}
	return false
}

func sendEvent(stream *rest.Stream, event store.WatchEvent, v view) error {
	kinds := map[store.WatchEventKind]rest.EventType{
		store.Exists: rest.Added, store.Created: rest.Added, store.Updated: rest.Modified,
		store.Gone: rest.Deleted, store.Synced: rest.Bookmark,
	}
	if event.Kind == store.Progress {
		stream.Advance(string(event.Cursor))
		return nil
	}
	e := rest.Event{Type: kinds[event.Kind], Cursor: string(event.Cursor)}
	if event.Change != nil {
		object, err := v.of(event.Change.Document)
		if err != nil {
			return err
		}
		e.Object = object
	}
	return stream.Send(e)
}

// row is a decoded resource, in which a search is evaluated in memory.
type row struct {
	doc  store.Document
	spec declared
	seen observed
}

// rowOf decodes a change once for all watches.
func rowOf(c *store.Change) *row {
	return c.Memo(func(d store.Document) any {
		r := &row{doc: d}
		// CLM encoded the stored document, so it can be decoded; one that cannot matches nothing.
		_ = json.Unmarshal(d.Spec, &r.spec)
		_ = json.Unmarshal(d.Status, &r.seen)
		return r
	}).(*row)
}

func (r *row) refers(refType, target string) bool {
	return slices.ContainsFunc(r.spec.References[refType], func(ref api.ObjectReference) bool {
		return ref.ID == target
	})
}

// field returns the value of a field of searchable.
func (r *row) field(name string) any {
	switch name {
	case "id":
		return r.doc.ID
	case "name":
		return r.doc.Name
	case "kind":
		return string(r.doc.Kind)
	case "generation":
		return r.doc.Generation
	case "created_by":
		return r.spec.CreatedBy
	case "updated_by":
		return r.spec.UpdatedBy
	case "deleted_by":
		if r.spec.DeletedBy != "" {
			return r.spec.DeletedBy
		}
	case "href":
		var wire struct{ Href string }
		_ = json.Unmarshal(r.doc.Wire, &wire)
		return wire.Href
	case "owner_id", "owner_kind", "owner_href":
		if o := r.spec.Owner; o != nil {
			return map[string]string{"owner_id": o.ID, "owner_kind": o.Kind, "owner_href": o.Href}[name]
		}
	case "tenancy":
		return raw(r.spec.Tenancy)
	case "created_time":
		return r.doc.CreatedAt
	case "updated_time":
		return r.seen.updatedTime(r.spec)
	case "deleted_time":
		if r.doc.DeletedAt != nil {
			return *r.doc.DeletedAt
		}
	case "labels":
		return raw(r.spec.Labels)
	case "spec":
		return r.spec.Spec
	}
	path := strings.Split(name, ".")
	if len(path) < 3 || path[0] != "status" {
		return nil
	}
	for _, c := range r.seen.Conditions {
		if c.Type == path[2] {
			return conditionPart(c, append(path, "status")[3])
		}
	}
	return nil
}

func conditionPart(c status.Condition, name string) any {
	switch name {
	case "status":
		return string(c.Status)
	case "observed_generation":
		return int64(c.ObservedGeneration)
	case "last_updated_time":
		return c.LastUpdatedTime.Truncate(time.Microsecond)
	case "last_transition_time":
		return c.LastTransitionTime.Truncate(time.Microsecond)
	}
	return nil
}
