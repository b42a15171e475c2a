package maestro

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/search"
	"atoll.dev/store"
)

// Default and largest number of items of a page.
const (
	defaultSize = 100
	maxSize     = 65500
)

// list has the parameters of a list request.
type list struct {
	page, size int
	filter     *search.Filter
	order      []store.Order
	fields     rest.Fields
}

// parseList reads the parameters of a list request. An error is the client's.
func parseList(r *http.Request, fields search.Schema) (list, error) {
	l := list{}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return l, apierror.BadRequest("the query cannot be decoded: %s", err)
	}
	if l.page, err = parseNumber(q, "page", 1); err != nil {
		return l, err
	}
	l.page = max(l.page, 1)
	if l.size, err = parseNumber(q, "size", defaultSize); err != nil {
		return l, err
	}
	if l.size < 0 || l.size > maxSize {
		l.size = maxSize
	}
	if l.order, err = parseOrder(q.Get("orderBy"), fields); err != nil {
		return l, err
	}
	if l.filter, err = parseSearch(q.Get("search"), fields); err != nil {
		return l, err
	}
	l.fields, err = rest.ParseFields(r)
	return l, err
}

func parseNumber(q url.Values, name string, absent int) (int, error) {
	text := q.Get(name)
	if text == "" {
		return absent, nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, apierror.BadRequest("%s=%s is not a number", name, text)
	}
	return int(n), nil
}

// query returns the store query of the page.
func (l list) query(kind store.Kind) store.Query {
	return store.Query{
		Kind: kind, Where: store.Fragment(
			l.filter.SQL()), OrderBy: l.order, Deletion: store.WithDeleting, WireOnly: true,
		Limit: l.size, Offset: (l.page - 1) * l.size,
	}
}

// withEqual adds "column = value" to a condition.
func withEqual(f store.Fragment, column, value string) store.Fragment {
	f.Args = append(f.Args, value)
	term := fmt.Sprintf("%s = $%d", column, len(f.Args))
	if f.SQL != "" {
		term = f.SQL + " and " + term
	}
	f.SQL = term
	return f
}

// answer streams the page in batches from the database to the client, all from one
// snapshot, so that a long page needs no more memory than a short one. render returns the
// items of documents. After the first byte, an error of answer makes the server cut the
// connection, so that a client never takes half a list for a whole one.
func (l list) answer(w http.ResponseWriter, r *http.Request, s *store.Store, kind string, q store.Query,
	render func(context.Context, []store.Document) ([]json.RawMessage, error)) error {
	var out *rest.Body
	head := func(x store.Extent) error {
		out = rest.NewBody(w)
		_, err := fmt.Fprintf(out, `{"kind":%q,"page":%d,"size":%d,"total":%d,"items":[`, kind, l.page, x.Size, x.Total)
		return err
	}
	if l.size == 0 {
		q.Limit, q.Offset, q.Count = 1, 0, true
		page, err := s.List(r.Context(), q)
		if err != nil {
			return err
		}
		return rest.WriteJSON(w, http.StatusOK, fmt.Appendf(nil, `{"kind":%q,"page":%d,"size":0,"total":%d,"items":[]}`,
			kind, l.page, page.Total))
	}
	written := 0
	err := s.Stream(r.Context(), q, head, func(docs []store.Document) error {
		items, err := render(r.Context(), docs)
		if err != nil {
			return err
		}
		for _, item := range items {
			if item, err = l.fields.Select(item); err != nil {
				return err
			}
			if written > 0 {
				item = append([]byte{','}, item...)
			}
			written++
			if _, err := out.Write(item); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if _, err := out.Write([]byte("]}")); err != nil {
		return err
	}
	return out.Close()
}

func (s *Server) listBundles(w http.ResponseWriter, r *http.Request) error {
	watch, err := parseWatch(r)
	if err != nil {
		return err
	}
	if watch {
		return s.watchBundles(w, r)
	}
	l, err := parseList(r, bundleFields)
	if err != nil {
		return err
	}
	return l.answer(w, r, s.store, "ResourceBundleList", l.query(bundle.Kind),
		func(_ context.Context, docs []store.Document) ([]json.RawMessage, error) {
			items := make([]json.RawMessage, len(docs))
			for i, d := range docs {
				items[i] = d.Wire
			}
			return items, nil
		})
}

func (s *Server) listConsumers(w http.ResponseWriter, r *http.Request) error {
	l, err := parseList(r, consumerFields)
	if err != nil {
		return err
	}
	return l.answer(w, r, s.store, "ConsumerList", l.query(bundle.ConsumerKind),
		func(_ context.Context, docs []store.Document) ([]json.RawMessage, error) {
			return s.consumerItems(r, docs)
		})
}

// consumerItems returns the REST forms of consumers. A client that asks for extensions
// also gets the observed members.
func (s *Server) consumerItems(r *http.Request, docs []store.Document) ([]json.RawMessage, error) {
	items, names := make([]json.RawMessage, len(docs)), make([]string, len(docs))
	for i, d := range docs {
		items[i], names[i] = d.Wire, d.Name
	}
	if !wantsExtensions(r) {
		return items, nil
	}
	known, err := s.ledger.HoldingsOf(r.Context(), s.life(), names...)
	if err != nil {
		return nil, err
	}
	for i, d := range docs {
		if items[i], err = withObserved(d, known[d.Name]); err != nil {
			return nil, err
		}
	}
	return items, nil
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

// find reads the document whose id is in the path, or returns a not-found error that has name.
func (s *Server) find(r *http.Request, kind store.Kind, name string) (store.Document, error) {
	id := r.PathValue("id")
	d, err := s.store.Get(r.Context(), kind, id)
	if errors.Is(err, store.ErrNotFound) {
		return d, apierror.NotFound(name, id)
	}
	return d, err
}

// ifMatch returns the version that the write requires, or 0 for any version. With
// If-Match: * any version will do, but the document must exist.
func (s *Server) ifMatch(r *http.Request, kind store.Kind, name string) (int64, error) {
	version, any, _, err := rest.ParseIfMatch(r)
	if err != nil || !any {
		return version, err
	}
	_, err = s.store.Get(r.Context(), kind, r.PathValue("id"))
	if errors.Is(err, store.ErrNotFound) {
		return 0, rest.Errorf(http.StatusPreconditionFailed, apierror.CodeStale,
			"%s with id='%s' not found, and If-Match wants one", name, r.PathValue("id"))
	}
	return 0, err
}
