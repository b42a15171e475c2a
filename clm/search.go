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

// searchable is what resources are searched by: their columns, labels.KEY,
// spec.a.b, and status.conditions.TYPE with its parts.
var searchable = search.Schema{Table: "resources", Fields: map[string]search.Field{
	"id":           {SQL: "d.id", Type: search.Text},
	"name":         {SQL: "d.name", Type: search.Text},
	"kind":         {SQL: "d.kind", Type: search.Text},
	"generation":   {SQL: "d.generation", Type: search.Int},
	"created_by":   {SQL: "d.spec->>'created_by'", Type: search.Text},
	"updated_by":   {SQL: "d.spec->>'updated_by'", Type: search.Text},
	"owner_id":     {SQL: "d.spec->'owner'->>'id'", Type: search.Text},
	"created_time": {SQL: "d.created_at", Type: search.Time},
	"updated_time": {SQL: "(d.spec->>'updated_time')::timestamptz", Type: search.Time},
	"deleted_time": {SQL: "d.deleted_at", Type: search.Time},
	"labels":       {SQL: "d.spec->'labels'", Type: search.JSON, Dotted: true, Flat: true, StringMaps: [][]string{{}}, Positive: true},
	"spec":         {SQL: "d.spec->'spec'", Type: search.JSON, Dotted: true},
	"status":       {SQL: "d.status", Type: search.JSON, Within: conditionField},
}}

// maxSearch is the contract's limit, in characters. Each may have four bytes.
const maxSearch = 4096

var (
	searchLimits  = search.Limits{Bytes: 4 * maxSearch}
	conditionType = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,99}$`)
)

// conditionParts are what of a condition is searched by.
var conditionParts = map[string]search.Field{
	"status":               {Type: search.Text, Ops: []string{"="}, Enum: []string{"True", "False", "Unknown"}},
	"observed_generation":  {Type: search.Int, Ops: comparisons},
	"last_updated_time":    {Type: search.Time, Ops: comparisons},
	"last_transition_time": {Type: search.Time, Ops: comparisons},
}

var comparisons = []string{"=", "<>", "<", "<=", ">", ">="}

// conditionField is one condition of a resource, or a part of it. Conditions
// are in a list, so their type is looked for. What is not possible is what the
// original refuses, too.
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
	f.SQL = "(select (c->>'" + part + "')" + casts[f.Type] + " from jsonb_array_elements(d.status->'conditions') c where c->>'type' = '" + path[1] + "')"
	return f, ok
}

func parseSearch(text string) (*search.Filter, error) {
	text = strings.TrimSpace(text)
	if n := utf8.RuneCountInString(text); n > maxSearch {
		return nil, rest.Errorf(http.StatusBadRequest, codeBadRequest, "the search has %d characters; %d are possible", n, maxSearch)
	}
	q, err := search.Parse(text, searchLimits)
	if err == nil {
		var f *search.Filter
		if f, err = q.Bind(searchable); err == nil {
			return f, nil
		}
	}
	return nil, rest.Errorf(http.StatusBadRequest, codeBadRequest, "the search %q cannot be understood: %s", rest.Shorten(text, 200), err)
}

// orderTypes are the types of the fields that lists can be ordered by.
var orderTypes = map[search.Type]string{search.Text: "text", search.Int: "bigint", search.Time: "timestamptz"}

var orderForm = regexp.MustCompile(`^[a-z_][a-z0-9_]*(\s+(asc|desc))?$`)

func parseOrder(parts []string) ([]store.Order, error) {
	if len(parts) == 0 {
		parts = []string{"created_time desc"}
	}
	var order []store.Order
	for _, part := range parts {
		if !orderForm.MatchString(part) {
			return nil, rest.Errorf(http.StatusBadRequest, codeBadRequest, "the order %q is not a field with asc or desc", rest.Shorten(part, 64))
		}
		words := strings.Fields(part)
		f := searchable.Fields[words[0]]
		if orderTypes[f.Type] == "" {
			return nil, rest.Errorf(http.StatusBadRequest, codeBadRequest, "cannot order by %q", rest.Shorten(words[0], 64))
		}
		order = append(order, store.Order{Expr: f.SQL, Type: orderTypes[f.Type], Desc: slices.Contains(words, "desc")})
	}
	return order, nil
}
