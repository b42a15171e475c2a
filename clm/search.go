package clm

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"atoll.dev/internal/rest"
	"atoll.dev/search"
	"atoll.dev/store"
)

// newSchema declares how clients search and order resources: by their columns, labels.KEY,
// spec.a.b, and status.conditions.TYPE with its parts.
func (r *Registry) newSchema() search.Schema {
	s := search.Schema{Table: "resources", Limits: searchLimits, OrderedText: orderedText}
	s.Fields = map[string]search.Field{
		"id":           {SQL: "d.id", Type: search.Text},
		"name":         {SQL: "d.name", Type: search.Text},
		"kind":         {SQL: "d.kind", Type: search.Text},
		"href":         {SQL: r.hrefSQL(), Type: search.Text},
		"generation":   {SQL: "d.generation", Type: search.Int},
		"created_by":   {SQL: "d.spec->>'created_by'", Type: search.Text},
		"updated_by":   {SQL: "d.spec->>'updated_by'", Type: search.Text},
		"deleted_by":   {SQL: "d.spec->>'deleted_by'", Type: search.Text},
		"owner_id":     {SQL: "d.spec->'owner'->>'id'", Type: search.Text},
		"owner_kind":   {SQL: "d.spec->'owner'->>'kind'", Type: search.Text},
		"owner_href":   {SQL: "d.spec->'owner'->>'href'", Type: search.Text},
		"created_time": {SQL: "d.created_at", Type: search.Time},
		"updated_time": {SQL: "greatest((d.spec->>'updated_time')::timestamptz, " +
			"(d.status->>'deletion_repeated')::timestamptz)", Type: search.Time},
		"deleted_time": {SQL: "d.deleted_at", Type: search.Time},
		"labels": {SQL: labelsSQL, Type: search.JSON, Dotted: true, Flat: true, StringMaps: [][]string{{}}, Pairs: true,
			Positive: true},
		"spec":    {SQL: "d.spec->'spec'", Type: search.JSON, Dotted: true},
		"tenancy": {SQL: "d.spec->'tenancy'", Type: search.JSON},
		"status":  {SQL: "d.status", Type: search.JSON, Within: conditionField},
	}
	return s
}

// labelsSQL is the expression of the labels. labelIndex serves searches by them.
const labelsSQL = "d.spec->'labels'"

var labelIndex = store.Index{Name: "pairs", On: "gin (" + search.PairsSQL("spec->'labels'") + ")"}

// hrefSQL returns the SQL of a resource's path, which is not stored: the path of its owner, its
// collection, and its id. Kinds and plurals consist of letters.
func (r *Registry) hrefSQL() string {
	var plural strings.Builder
	for _, e := range r.entities {
		plural.WriteString(" when '" + e.Kind + "' then '" + e.Plural + "'")
	}
	return "(coalesce(d.spec->'owner'->>'href', '" + basePath + "') || '/' || (case d.kind" + plural.String() +
		" end) || '/' || d.id)"
}

const (
	maxSearch   = 4096 // the contract's limit, in characters; each may have four bytes
	orderedText = 128  // characters of a JSON field's text by which it orders a list
)

var (
	searchLimits  = search.Limits{Bytes: 4 * maxSearch, Keyed: []string{"labels"}}
	conditionType = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,99}$`)
)

// conditionParts are the parts of a condition by which clients search.
var conditionParts = map[string]search.Field{
	"status":               {Type: search.Text, Ops: []string{"=", "is"}, Enum: []string{"True", "False", "Unknown"}},
	"observed_generation":  {Type: search.Int, Ops: comparisons},
	"last_updated_time":    {Type: search.Time, Ops: comparisons},
	"last_transition_time": {Type: search.Time, Ops: comparisons},
}

var comparisons = []string{"=", "<>", "<", "<=", ">", ">=", "is"}

// conditionField returns the field for the path of a condition, or of a part of one. Conditions are in a list, so the
// SQL looks for the one of the type. It refuses the same paths as the original.
func conditionField(path []string) (search.Field, bool) {
	if len(path) < 2 || len(path) > 3 || path[0] != "conditions" || !conditionType.MatchString(path[1]) {
		return search.Field{}, false
	}
	part := "status"
	if len(path) == 3 {
		part = path[2]
	}
	casts := map[search.Type]string{search.Text: "", search.Int: "::bigint", search.Time: "::timestamptz"}
	f, ok := conditionParts[part]
	f.Positive = true
	if f.Type == search.Text {
		f.Equal = "exists (select from feed f where f.xid = d.xid and f.kind = d.kind and f.id = d.id and f.facets " +
			"@> array['" +
			path[1] + "=' || %s])"
	}
	if part == "last_updated_time" {
		f.SQL = "(select coalesce(" + observedTimeSQL + ", (c->>'" + part + "')::timestamptz)" +
			" from jsonb_array_elements(d.status->'conditions') with ordinality as e (c, n) where c->>'type' = '" + path[1] +
			"')"
		return f, ok
	}
	f.SQL = "(select (c->>'" + part + "')" + casts[f.Type] +
		" from jsonb_array_elements(d.status->'conditions') c where c->>'type' = '" + path[1] + "')"
	return f, ok
}

// parseSearch reads a search text. An error is an answer 400.
func (r *Registry) parseSearch(text string) (*search.Filter, error) {
	text = strings.TrimSpace(text)
	if n := utf8.RuneCountInString(text); n > maxSearch {
		return nil, rest.Errorf(http.StatusBadRequest, codeBadRequest, "the search has %d characters; %d are possible",
			n, maxSearch)
	}
	f, err := r.search.Parse(text)
	if err != nil {
		return nil, rest.Errorf(http.StatusBadRequest, codeBadRequest, "the search %q cannot be understood: %s",
			rest.Shorten(text, 200), err)
	}
	return f, nil
}

// orderForm is the form of one key of an order.
var orderForm = regexp.MustCompile(`^[a-z_][a-z0-9_]*(\s+(asc|desc))?$`)

// parseOrder reads the keys of an order, such as "name desc". The default is by time of creation, latest first. An
// error is an answer 400.
func (r *Registry) parseOrder(parts []string) ([]store.Order, error) {
	if len(parts) == 0 {
		parts = []string{"created_time desc"}
	}
	var order []store.Order
	for _, part := range parts {
		if !orderForm.MatchString(part) {
			return nil, rest.Errorf(http.StatusBadRequest, codeBadRequest,
				"the order %q is not a field with asc or desc", rest.Shorten(part, 64))
		}
		words := strings.Fields(part)
		o, ok := r.search.OrderBy(words[0])
		if !ok {
			return nil, rest.Errorf(http.StatusBadRequest, codeBadRequest, "cannot order by %q",
				rest.Shorten(words[0], 64))
		}
		o.Desc = slices.Contains(words, "desc")
		order = append(order, store.Order(o))
	}
	return order, nil
}
