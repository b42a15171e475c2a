package restapi

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
func (l list) answer(w http.ResponseWriter, r *http.Request, st *store.Store, kind string, q store.Query,
	render func(context.Context, []store.Document) ([]json.RawMessage, error)) error {
	var out *rest.StreamedBody
	head := func(x store.Extent) error {
		out = rest.NewStreamedBody(w)
		_, err := fmt.Fprintf(out, `{"kind":%q,"page":%d,"size":%d,"total":%d,"items":[`, kind, l.page, x.Size, x.Total)
		return err
	}
	if l.size == 0 {
		q.Limit, q.Offset, q.Count = 1, 0, true
		page, err := st.List(r.Context(), q)
		if err != nil {
			return err
		}
		return rest.WriteJSON(w, http.StatusOK, fmt.Appendf(nil, `{"kind":%q,"page":%d,"size":0,"total":%d,"items":[]}`,
			kind, l.page, page.Total))
	}
	written := 0
	err := st.Stream(r.Context(), q, head, func(docs []store.Document) error {
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

// find reads the document whose id is in the path, or returns a not-found error that has name.
func (h *handlers) find(r *http.Request, kind store.Kind, name string) (store.Document, error) {
	id := r.PathValue("id")
	d, err := h.Store.Get(r.Context(), kind, id)
	if errors.Is(err, store.ErrNotFound) {
		return d, apierror.NotFound(name, id)
	}
	return d, err
}

// ifMatch returns the version that the write requires, or 0 for any version. With
// If-Match: * any version will do, but the document must exist.
func (h *handlers) ifMatch(r *http.Request, kind store.Kind, name string) (int64, error) {
	version, any, _, err := rest.ParseIfMatch(r)
	if err != nil || !any {
		return version, err
	}
	_, err = h.Store.Get(r.Context(), kind, r.PathValue("id"))
	if errors.Is(err, store.ErrNotFound) {
		return 0, rest.Errorf(http.StatusPreconditionFailed, apierror.CodeStale,
			"%s with id='%s' not found, and If-Match wants one", name, r.PathValue("id"))
	}
	return 0, err
}
