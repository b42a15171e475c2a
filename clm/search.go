package clm

import (
	"net/http"
	"regexp"
	"slices"
	"strings"

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
	"labels":       {SQL: "d.spec->'labels'", Type: search.JSON, Dotted: true, StringMaps: [][]string{{}}},
	"spec":         {SQL: "d.spec->'spec'", Type: search.JSON, Dotted: true},
	"status":       {SQL: "d.status", Type: search.JSON, Within: conditionField},
}}

// searchLimits bound what a search may ask for; the length is the contract's.
var searchLimits = search.Limits{Bytes: 4096}

var conditionType = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]{0,99}$`)

// conditionField is one condition of a resource, or a part of it. Conditions
// are in a list, so their type is looked for.
func conditionField(path []string) (search.Field, bool) {
	if len(path) < 2 || len(path) > 3 || !strings.EqualFold(path[0], "conditions") || !conditionType.MatchString(path[1]) {
		return search.Field{}, false
	}
	part := "status"
	if len(path) == 3 {
		part = strings.ToLower(path[2])
	}
	types := map[string]search.Type{
		"status": search.Text, "reason": search.Text, "message": search.Text,
		"observed_generation": search.Int, "last_updated_time": search.Time, "last_transition_time": search.Time, "created_time": search.Time,
	}
	casts := map[search.Type]string{search.Text: "", search.Int: "::bigint", search.Time: "::timestamptz"}
	kind, ok := types[part]
	return search.Field{
		SQL:  "(select (c->>'" + part + "')" + casts[kind] + " from jsonb_array_elements(d.status->'conditions') c where c->>'type' = '" + path[1] + "')",
		Type: kind,
	}, ok
}

func parseSearch(text string) (*search.Filter, error) {
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

func parseOrder(text string) ([]store.Order, error) {
	if strings.TrimSpace(text) == "" {
		text = "created_time desc"
	}
	var order []store.Order
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
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
