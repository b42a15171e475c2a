package clm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	api "atoll.dev/api/clm"
	"atoll.dev/internal/rest"
	"atoll.dev/search"
	"atoll.dev/store"
)

// Bounds of a page.
const (
	defaultSize = 20
	maxSize     = 100
	maxPage     = 100_000
)

// members are the fields of a resource, for the parameter fields.
var members = []string{"id", "kind", "name", "href", "generation", "labels", "spec", "references", "owner_references",
	"status", "tenancy",
	"created_time", "updated_time", "created_by", "updated_by", "deleted_time", "deleted_by"}

// params parses the query strictly: a parameter that cannot be decoded is an error,
// while URL.Query would omit it.
func params(r *http.Request) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, rest.Errorf(http.StatusBadRequest, codeBadRequest, "the query cannot be decoded: %s", err)
	}
	return q, nil
}

// parseFields reads the parameter fields. "spec.*" is the same as "spec".
func parseFields(r *http.Request) (rest.Fields, error) {
	q, err := params(r)
	names := items(q["fields"])
	if err != nil || len(names) == 0 {
		return rest.Fields{}, err
	}
	for i, name := range names {
		names[i] = strings.TrimSuffix(name, ".*")
		if first, _, _ := strings.Cut(names[i], "."); !slices.Contains(members, first) {
			return rest.Fields{}, rest.Errorf(http.StatusBadRequest, codeValidation,
				"there is no field %q; possible: %s", shorten(name), strings.Join(members, ", "))
		}
	}
	u := *r.URL
	u.RawQuery = url.Values{"fields": {strings.Join(names, ",")}}.Encode()
	return rest.ParseFields(&http.Request{URL: &u})
}

// view selects the members of resources in an answer, and whether they have their version
// and their adapters' reports, which are of the same state as the other members.
type view struct {
	fields   rest.Fields
	statuses bool
}

// parseView reads the parameters fields and statuses.
func parseView(r *http.Request) (v view, err error) {
	if v.fields, err = parseFields(r); err != nil {
		return v, err
	}
	switch asked := r.URL.Query().Get("statuses"); asked {
	case "", "false", "0":
	case "true", "1":
		v.statuses = true
	default:
		return v, rest.Errorf(http.StatusBadRequest, codeBadRequest, "statuses=%s is neither true nor false",
			shorten(asked))
	}
	return v, nil
}

// of returns the selected members of a document. With statuses it needs the document's
// Status.
func (v view) of(d store.Document) (json.RawMessage, error) {
	wire, err := v.fields.Select(d.Wire)
	if err != nil || !v.statuses {
		return wire, err
	}
	const room = 64 // for what is neither in the wire form nor in the reports
	shown := make([]byte, 0, len(wire)+len(d.Status)+room)
	shown = append(shown, bytes.TrimSuffix(bytes.TrimSpace(wire), []byte("}"))...)
	shown = fmt.Appendf(shown, `,"version":%d,"statuses":`, d.Version)
	if shown, err = appendReports(shown, d); err != nil {
		return nil, err
	}
	return append(shown, '}'), nil
}

// items splits a parameter with commas, which may be given several times.
func items(values []string) (all []string) {
	for item := range strings.SplitSeq(strings.Join(values, ","), ",") {
		if item = strings.TrimSpace(item); item != "" {
			all = append(all, item)
		}
	}
	return all
}

// parsePage reads page and size, strictly.
func parsePage(r *http.Request) (rest.Page, error) {
	p := rest.Page{Number: 1, Size: defaultSize}
	var wrong []rest.FieldError
	for _, param := range []struct {
		name string
		into *int
		most int
	}{{"page", &p.Number, maxPage}, {"size", &p.Size, maxSize}} {
		text := strings.TrimSpace(r.URL.Query().Get(param.name))
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		constraint := ""
		switch {
		case err != nil:
			constraint = "format"
		case n < 1:
			constraint = "min"
		case n > param.most:
			constraint = "max"
		default:
			*param.into = n
			continue
		}
		wrong = append(wrong, rest.FieldError{Field: param.name, Constraint: constraint, Value: raw(shorten(text)),
			Message: fmt.Sprintf("must be a whole number from 1 to %d", param.most)})
	}
	return p, fieldErrors(wrong)
}

func (c *collection) list(w http.ResponseWriter, r *http.Request) error {
	page, err := parsePage(r)
	if err != nil {
		return err
	}
	view, err := parseView(r)
	if err != nil {
		return err
	}
	q, filter, err := c.query(r)
	if err != nil {
		return err
	}
	if watching, err := watches(r); err != nil || watching {
		if err != nil {
			return err
		}
		return c.watch(w, r, q, filter, view)
	}
	q.Limit, q.WireOnly = page.Size, !view.statuses
	var total int
	if q.After, total, q.Count = continued(r.URL.Query().Get("continue")); q.After == "" {
		q.Offset = int(page.Offset())
	}
	found, err := c.s.store.List(r.Context(), q)
	if err != nil {
		return err
	}
	if q.Count {
		total = found.Total
	}
	list := api.ResourceList{Page: page.Number, Size: len(found.Documents), Total: total, Items: []json.RawMessage{},
		Cursor: string(found.Cursor)}
	if found.Next != "" {
		list.Continue = strconv.Itoa(total) + "." + found.Next
	}
	for _, d := range found.Documents {
		item, err := view.of(d)
		if err != nil {
			return err
		}
		list.Items = append(list.Items, item)
	}
	return writeList(w, list)
}

// continued takes the parameter continue apart: where the page begins, and the list's total as its first page counted
// it. Pages that follow show that total, so that a list of many pages is counted once. A token without a total is of an
// earlier version, and its page counts.
func continued(token string) (after string, total int, count bool) {
	if text, after, found := strings.Cut(token, "."); found {
		if total, err := strconv.Atoi(text); err == nil && total >= 0 {
			return after, total, false
		}
	}
	return token, 0, true
}

// watches reports whether the request asks for a watch of the list.
func watches(r *http.Request) (bool, error) {
	switch watching := r.URL.Query().Get("watch"); watching {
	case "", "false", "0":
		return false, nil
	case "true", "1":
		return true, nil
	default:
		return false, rest.Errorf(http.StatusBadRequest, codeBadRequest, "watch=%s is neither true nor false",
			shorten(watching))
	}
}

// writeList writes a list of encoded items without encoding them again.
func writeList(w http.ResponseWriter, l api.ResourceList) error {
	parts := append(make([][]byte, 0, 2*len(l.Items)+2), []byte(`{"items":[`))
	for i, item := range l.Items {
		if i > 0 {
			parts = append(parts, comma)
		}
		parts = append(parts, item)
	}
	end := fmt.Appendf(nil, `],"page":%d,"size":%d,"total":%d`, l.Page, l.Size, l.Total)
	if l.Continue != "" {
		end = fmt.Appendf(end, `,"continue":%q`, l.Continue)
	}
	if l.Cursor != "" {
		end = fmt.Appendf(end, `,"cursor":%q`, l.Cursor)
	}
	return rest.WriteJSONParts(w, http.StatusOK, append(parts, append(end, '}')))
}

var comma = []byte{','}

// query returns the database query of a list request. filter is its parsed search.
func (c *collection) query(r *http.Request) (q store.Query, filter *search.Filter, err error) {
	q.Deletion = store.WithDeleting
	params, err := params(r)
	if err != nil {
		return q, nil, err
	}
	if filter, err = c.s.registry.parseSearch(params.Get("search")); err != nil {
		return q, nil, err
	}
	where := conditions{store.Fragment(filter.SQL())}
	switch kind := params.Get("kind"); {
	case c.entity != nil:
		q.Kind = c.entity.storeKind()
	case kind == "":
		for _, e := range c.s.registry.entities {
			q.Kinds = append(q.Kinds, e.storeKind())
		}
	case c.s.registry.byKind[kind] == nil:
		return q, nil, rest.Errorf(http.StatusBadRequest, codeValidation, "there is no kind %q here", shorten(kind))
	default:
		q.Kind = store.Kind(kind)
	}
	if c.nested {
		q.Scope = r.PathValue("parent_id")
		if err := c.parentExists(r); err != nil {
			return q, nil, err
		}
	}
	if caller := callerOf(r.Context()); caller.Tenancy != nil {
		compare := "d.spec->'tenancy' = $%d::jsonb" // which an index serves
		if caller.Partial && len(caller.Tenancy) > 0 {
			compare = "d.spec->'tenancy' @> $%d::jsonb"
		}
		where.add(compare, string(raw(caller.Tenancy)))
	}
	refType, target, err := referring(params)
	if err != nil {
		return q, nil, err
	}
	if refType != "" && c.entity != nil && c.entity.rule(refType) == nil {
		return q, nil, fieldError(http.StatusBadRequest, codeValidation, "ref_type", "enum",
			fmt.Sprintf("is no reference of a %s: %s", c.entity.Kind, shorten(refType)))
	}
	if refType != "" {
		where.add("exists (select from reference r where r.source = d.id and r.type = $%d and r.target = $%d)", refType,
			target)
	}
	q.OrderBy, err = c.s.registry.parseOrder(items(params["order"]))
	q.Where = where.fragment
	return q, filter, err
}

// referring reads the reference that listed resources must have; refType is "" if the
// request has no such condition.
func referring(params url.Values) (refType, target string, err error) {
	refType, target = strings.TrimSpace(params.Get("ref_type")), strings.TrimSpace(params.Get("ref_target_id"))
	switch {
	case refType == "" && target != "":
		err = fieldError(http.StatusBadRequest, codeValidation, "ref_type", "required",
			"and ref_target_id must be provided together")
	case refType != "" && target == "":
		err = fieldError(http.StatusBadRequest, codeValidation, "ref_target_id", "required",
			"and ref_type must be provided together")
	}
	return refType, target, err
}

func (c *collection) parentExists(r *http.Request) error {
	up := &collection{s: c.s, entity: c.entity.parent}
	r2 := r.Clone(r.Context())
	r2.SetPathValue("id", r.PathValue("parent_id"))
	_, _, err := up.read(r2)
	return err
}

// conditions joins conditions by and.
type conditions struct{ fragment store.Fragment }

// add adds a condition; each %d in it becomes the number of an argument.
func (c *conditions) add(sql string, args ...any) {
	numbers := make([]any, len(args))
	for i, arg := range args {
		c.fragment.Args = append(c.fragment.Args, arg)
		numbers[i] = len(c.fragment.Args)
	}
	if c.fragment.SQL != "" {
		c.fragment.SQL += " and "
	}
	c.fragment.SQL += fmt.Sprintf(sql, numbers...)
}
