package rosa

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"atoll.dev/access"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

// oldestFirst is an order in which a new resource moves no other.
const oldestFirst = "created_time asc, id asc"

// pageSize is the size of the lifecycle manager's largest page.
const pageSize = 100

// listing describes a list: the resources that it reads, and the shape of an item.
type listing[T any] struct {
	from   clmclient.Collection
	search string
	show   shape[T]
	phase  func(T) string
	phases []string // possible values of status
	// visible reports whether the caller may describe a resource; nil: he may describe all.
	visible visible
}

// visible decides whether a caller sees a resource in a list.
type visible func(*exchange, clmclient.Resource) (bool, error)

// filter returns the decision about each item of a list; nil when the caller may take the action on
// every resource of his account, so that pages need no decisions and no earlier pages.
func (c *exchange) filter(action access.Action, decide visible) visible {
	if access.AuthorityFrom(c.r.Context()).PermitsAll(action) {
		return nil
	}
	return decide
}

// phaseNames returns the names of phases.
func phaseNames[P ~string](all ...P) (names []string) {
	for _, p := range all {
		names = append(names, string(p))
	}
	return names
}

// page is a part of a list.
type page[T any] struct {
	items                []T
	total, limit, offset int
}

// listPage returns the items that limit, offset and status of the request select.
// The lifecycle manager knows neither phases nor policies, so that a list of one phase, or of a
// caller who may not describe everything, reads every resource. Its total counts what he sees.
func listPage[T any](h *customerAPI, c *exchange, s listing[T]) (p page[T], err error) {
	if p.limit, p.offset, err = c.readPageBounds(); err != nil {
		return p, err
	}
	phase := c.r.URL.Query().Get("status")
	if phase != "" && !slices.Contains(s.phases, phase) {
		return p, c.errorf(http.StatusBadRequest, codeUnreadable, "status=%s is none; possible: %s", quote(phase),
			strings.Join(s.phases, ", "))
	}
	p.items = []T{}
	q := clmclient.ResourceQuery{Search: s.search, Order: oldestFirst, Size: pageSize, Statuses: true}
	readsAll := phase != "" || s.visible != nil
	if !readsAll { // the pages before need not be read
		q.Page = p.offset/pageSize + 1
		p.total = (q.Page - 1) * pageSize
	}
	for {
		found, err := h.clm.List(c.ctx, s.from, q)
		if err != nil {
			return p, err
		}
		for _, r := range found.Items {
			if s.visible != nil {
				if sees, err := s.visible(c, r); err != nil {
					return p, err
				} else if !sees {
					continue
				}
			}
			item, err := s.show(r)
			if err != nil {
				return p, err
			}
			if phase != "" && s.phase(item) != phase {
				continue
			}
			if p.total >= p.offset && len(p.items) < p.limit {
				p.items = append(p.items, item)
			}
			p.total++
		}
		done := found.Continue == "" || !readsAll && len(p.items) == p.limit
		if done && !readsAll {
			p.total = found.Total
		}
		if done {
			return p, nil
		}
		q.Page, q.Continue = 0, found.Continue
	}
}

// equalSearch returns a search for a value; "" when the value is empty.
func equalSearch(field, value string) string {
	if value == "" {
		return ""
	}
	return remote.SearchEqual(field, value)
}

// joinSearches returns a search for resources that match both searches; an empty
// search matches everything.
func joinSearches(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + " and " + b
}

// relayWatch relays a watch of the lifecycle manager with its cursors, each object
// in the shape that show gives it. A stream that breaks ends the watch; the client
// continues with its cursor. Each object is decided on when it is sent: the caller does not get the
// objects that he may not describe. When he may no longer describe an object that this stream has
// shown, the stream ends with 410 gone, and the client lists again.
func (h *customerAPI) relayWatch(c *exchange, from clmclient.Collection, o remote.WatchOptions,
	show func(json.RawMessage) (json.RawMessage, error), sees visible) error {
	shown := map[string]bool{}
	return rest.Watch(c.w, c.r, rest.WatchOptions{}, func(ctx context.Context, s *rest.Stream) error {
		upstream, err := h.clm.Watch(clmclient.WithTenant(ctx, c.caller.Account), from, o)
		if err != nil {
			return c.translate(err)
		}
		defer upstream.Close()
		defer context.AfterFunc(ctx, func() { _ = upstream.Close() })()
		if err := s.Open(o.Cursor); err != nil {
			return err
		}
		for {
			e, err := upstream.Next()
			if err != nil {
				return c.unavailable(err)
			}
			if e.Type == rest.Failed {
				return c.watchError(e.Object)
			}
			if e.Object != nil {
				r, err := clmclient.ResourceOf(e.Object)
				if err != nil {
					return err
				}
				c.tags = nil // they may have changed
				switch isVisible, err := sees(c, r); {
				case err != nil:
					return c.translate(err)
				case !isVisible && shown[r.ID]:
					return errViewChanged()
				case !isVisible:
					continue
				}
				shown[r.ID] = true
				if e.Object, err = show(e.Object); err != nil {
					return err
				}
			}
			if err := s.Send(e); err != nil {
				return err
			}
		}
	})
}

// errViewChanged ends a watch whose caller may not describe something any more that it has shown.
func errViewChanged() *rest.Error {
	return rest.Errorf(http.StatusGone, codeGone, "what you may see has changed; list again, and watch from there")
}

// watchError gives the ERROR event of a watch of the lifecycle manager the answer
// of this API.
func (c *exchange) watchError(object json.RawMessage) error {
	var problem struct{ Status int }
	if json.Unmarshal(object, &problem) == nil && problem.Status == http.StatusGone {
		return rest.Errorf(http.StatusGone, codeGone, "the cursor is too old; list again, and watch from there")
	}
	e := c.unavailable(nil)
	e.Reason = "the stream broke; watch again with the last cursor"
	return e
}
