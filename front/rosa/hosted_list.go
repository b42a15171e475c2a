package rosa

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

// oldestFirst is an order that does not change when something is created.
const oldestFirst = "created_time asc, id asc"

// pageSize is the lifecycle manager's largest page.
const pageSize = 100

// selection says what is listed, and how it is shown.
type selection[T any] struct {
	from   clmclient.Collection
	search string
	show   func(clmclient.Resource) (T, error)
	phase  func(T) string
	phases []string // that there are
}

// phases are their names.
func phases[P ~string](all ...P) (names []string) {
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

// listed are the items that the request's limit, offset and status name.
func listed[T any](h *hosted, c *exchange, s selection[T]) (p page[T], err error) {
	if p.limit, p.offset, err = c.bounds(); err != nil {
		return p, err
	}
	phase := c.r.URL.Query().Get("status")
	if phase != "" && !slices.Contains(s.phases, phase) {
		return p, c.fail(http.StatusBadRequest, codeBad, "status=%s is none; possible: %s", quote(phase),
			strings.Join(s.phases, ", "))
	}
	p.items = []T{}
	q := clmclient.ResourceQuery{Search: s.search, Order: oldestFirst, Size: pageSize, Statuses: true}
	if phase == "" { // pages before are of no interest
		q.Page = p.offset/pageSize + 1
		p.total = (q.Page - 1) * pageSize
	}
	for {
		found, err := h.clm.List(c.ctx, s.from, q)
		if err != nil {
			return p, err
		}
		for _, r := range found.Items {
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
		done := found.Continue == "" || phase == "" && len(p.items) == p.limit
		if done && phase == "" {
			p.total = found.Total
		}
		if done {
			return p, nil
		}
		q.Page, q.Continue = 0, found.Continue
	}
}

// equalTo is a search, "" when there is no value to look for.
func equalTo(field, value string) string {
	if value == "" {
		return ""
	}
	return remote.Equal(field, value)
}

// both joins searches.
func both(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + " and " + b
}

// relay passes a watch of the lifecycle manager on, each object as show makes
// it, with its cursors. It does not continue a stream that breaks: the client
// does, with its cursor.
func (h *hosted) relay(c *exchange, from clmclient.Collection, o remote.WatchOptions, show func(json.RawMessage) (
	json.RawMessage, error)) error {
	return rest.Watch(c.w, c.r, rest.WatchOptions{}, func(ctx context.Context, s *rest.Stream) error {
		upstream, err := h.clm.Watch(clmclient.WithTenant(ctx, c.who.Account), from, o)
		if err != nil {
			return c.explained(err)
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
				return c.ended(e.Object)
			}
			if e.Object != nil {
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

// ended is the ERROR event of the lifecycle manager in the words of this API.
func (c *exchange) ended(object json.RawMessage) error {
	var problem struct{ Status int }
	if json.Unmarshal(object, &problem) == nil && problem.Status == http.StatusGone {
		return rest.Errorf(http.StatusGone, codeGone, "the cursor is too old; list again, and watch from there")
	}
	e := c.unavailable(nil)
	e.Reason = "the stream broke; watch again with the last cursor"
	return e
}
