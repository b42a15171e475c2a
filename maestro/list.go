package maestro

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// Bounds of a page.
const (
	defaultSize = 100
	maxSize     = 65500
)

// list is what a request wants of a list.
type list struct {
	page, size int
	conditions []condition
	fields     rest.Fields
}

func parseList(r *http.Request, searchable ...string) (list, error) {
	l := list{}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return l, badRequest("the query cannot be decoded: %s", err)
	}
	if l.page, err = number(q, "page", 1); err != nil {
		return l, err
	}
	l.page = max(l.page, 1)
	if l.size, err = number(q, "size", defaultSize); err != nil {
		return l, err
	}
	if l.size < 0 || l.size > maxSize {
		l.size = maxSize
	}
	if order := strings.TrimSpace(q.Get("orderBy")); order != "" {
		return l, badRequest("bad order value '%s': orderBy is not available yet", order)
	}
	if l.conditions, err = parseSearch(q.Get("search"), searchable...); err != nil {
		return l, err
	}
	l.fields, err = rest.ParseFields(r)
	return l, err
}

func number(q url.Values, name string, absent int) (int, error) {
	text := q.Get(name)
	if text == "" {
		return absent, nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, badRequest("%s=%s is not a number", name, text)
	}
	return int(n), nil
}

func badRequest(format string, args ...any) *rest.Error {
	return rest.Errorf(http.StatusBadRequest, codeBadRequest, format, args...)
}

// read reads the page. The order is that of creation, so that what is created
// while a client turns pages comes on the last one.
func (l list) read(ctx context.Context, s *store.Store, q store.Query) (store.Page, error) {
	q.Deletion = store.WithDeleting
	q.OrderBy = []store.Order{{Expr: "d.created_at", Type: "timestamptz"}}
	q.Count = true
	q.Limit = max(l.size, 1)
	q.Offset = (l.page - 1) * l.size
	page, err := s.List(ctx, q)
	if l.size == 0 {
		page.Documents = nil
	}
	return page, err
}

// and adds "column = value" to a condition.
func and(f store.Fragment, column, value string) store.Fragment {
	f.Args = append(f.Args, value)
	term := fmt.Sprintf("%s = $%d", column, len(f.Args))
	if f.SQL != "" {
		term = f.SQL + " and " + term
	}
	f.SQL = term
	return f
}

// write answers with rendered items.
func (l list) write(w http.ResponseWriter, kind string, total int, items []json.RawMessage) error {
	size := 128
	for i := range items {
		if !l.fields.All() {
			picked, err := l.fields.Select(items[i])
			if err != nil {
				return err
			}
			items[i] = picked
		}
		size += len(items[i]) + 1
	}
	var b bytes.Buffer
	b.Grow(size)
	fmt.Fprintf(&b, `{"kind":%q,"page":%d,"size":%d,"total":%d,"items":[`, kind, l.page, len(items), total)
	for i, item := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(item)
	}
	b.WriteString("]}")
	return rest.WriteJSON(w, http.StatusOK, b.Bytes())
}

// bundleQuery is the part of a search that the database evaluates.
func bundleQuery(conditions []condition) store.Query {
	q := store.Query{Kind: kindBundle, WireOnly: true}
	columns := map[string]string{"id": "d.id", "name": "d.id", "consumer_name": "d.scope", "source": "d.spec->>'source'"}
	for _, c := range conditions {
		q.Where = and(q.Where, columns[c.field], c.value)
	}
	return q
}

var bundleSearch = []string{"id", "name", "source", "consumer_name"}

func (s *Server) listBundles(w http.ResponseWriter, r *http.Request) error {
	watch, err := watching(r)
	if err != nil {
		return err
	}
	l, err := parseList(r, bundleSearch...)
	if err != nil {
		return err
	}
	if watch {
		return s.watchBundles(w, r, l)
	}
	page, err := l.read(r.Context(), s.store, bundleQuery(l.conditions))
	if err != nil {
		return err
	}
	items := make([]json.RawMessage, len(page.Documents))
	for i, d := range page.Documents {
		items[i] = d.Wire
	}
	return l.write(w, "ResourceBundleList", page.Total, items)
}

func watching(r *http.Request) (bool, error) {
	text := r.URL.Query().Get("watch")
	if text == "" {
		return false, nil
	}
	watch, err := strconv.ParseBool(text)
	if err != nil {
		return false, badRequest("watch=%s is neither true nor false", text)
	}
	return watch, nil
}

// find reads the document that the path names.
func (s *Server) find(r *http.Request, kind store.Kind, name string) (store.Document, error) {
	id := r.PathValue("id")
	d, err := s.store.Get(r.Context(), kind, id)
	if errors.Is(err, store.ErrNotFound) {
		return d, notFound(name, id)
	}
	return d, err
}

// ifMatch returns the version that a write insists on, or 0. If-Match: * wants
// any version, but of a document that exists.
func (s *Server) ifMatch(r *http.Request, kind store.Kind, name string) (int64, error) {
	version, any, _, err := rest.ParseIfMatch(r)
	if err != nil || !any {
		return version, err
	}
	_, err = s.store.Get(r.Context(), kind, r.PathValue("id"))
	if errors.Is(err, store.ErrNotFound) {
		return 0, rest.Errorf(http.StatusPreconditionFailed, codeStale, "%s with id='%s' not found, and If-Match wants one", name, r.PathValue("id"))
	}
	return 0, err
}
