package restapi

import (
	"strings"
	"time"

	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/search"
	"atoll.dev/store"
)

// MaxSearch is the largest length of a search in bytes. The search is in the request's line.
const MaxSearch = 512 << 10

// searchLimits bound a search. A source lists all its consumers in one search.
var searchLimits = search.Limits{Bytes: MaxSearch, Depth: 64, Terms: 200, Values: 20_000}

// bundleFields are the fields by which clients search and order bundles: the columns of
// the original's table resources, mapped to the store. The stored spec and
// status are the CloudEvents that the original has in payload and status.
var bundleFields = search.Schema{Table: "resources", Limits: searchLimits, Fields: map[string]search.Field{
	"id":            {SQL: "d.id", Type: search.Text},
	"name":          {SQL: "d.id", Type: search.Text}, // a bundle's name is its id
	"created_at":    {SQL: "d.created_at", Type: search.Time},
	"updated_at":    {SQL: "d.updated_at", Type: search.Time},
	"deleted_at":    {SQL: "d.deleted_at", Type: search.Time},
	"source":        {SQL: "d.spec->>'source'", Type: search.Text},
	"consumer_name": {SQL: "d.scope", Type: search.Text},
	"version":       {SQL: "(d.generation - coalesce((d.spec->>'generationoffset')::bigint, 0))", Type: search.Int},
	"type":          {SQL: "'Bundle'::text", Type: search.Text},
	"payload": {SQL: "d.spec", Type: search.JSON, StringMaps: [][]string{{"metadata", "labels"},
		{"metadata", "annotations"}}},
	"status": {SQL: "nullif(d.status, '{}'::jsonb)", Type: search.JSON},
}}

// LabelIndex is an index of bundles that serves searches by labels: equality, in, and @>.
var LabelIndex = store.Index{Name: "labels", On: "gin ((spec->'metadata'->'labels') jsonb_path_ops)"}

// SearchStatistics is a migration of the database. Its statistics give the planner the frequencies
// of sources and labels, which it does not get from an index on one kind. Without them a search by
// both went through all bundles of the source.
const SearchStatistics = `
create statistics bundle_source on (spec->>'source') from document;
create statistics bundle_labels on (spec->'metadata'->'labels') from document;
`

// consumerFields are the fields by which clients search and order consumers.
var consumerFields = search.Schema{Table: "consumers", Limits: searchLimits, Fields: map[string]search.Field{
	"id":         {SQL: "d.id", Type: search.Text},
	"name":       {SQL: "d.name", Type: search.Text},
	"created_at": {SQL: "d.created_at", Type: search.Time},
	"updated_at": {SQL: "d.updated_at", Type: search.Time},
	"deleted_at": {SQL: "d.deleted_at", Type: search.Time},
	"labels":     {SQL: "d.spec->'labels'", Type: search.JSON, Dotted: true, StringMaps: [][]string{{}}},
}}

// watchFields are the fields by which a watch can search. They never change, so no bundle
// leaves a watch without an event.
var watchFields = bundleFields.Only("id", "name", "source", "consumer_name", "created_at", "type")

// parseSearch parses a search text and checks it against the searchable fields.
func parseSearch(text string, fields search.Schema) (*search.Filter, error) {
	f, err := fields.Parse(text)
	if err != nil {
		return nil, unsearchable(text, err)
	}
	return f, nil
}

// unsearchable returns the answer for a search text with a mistake.
func unsearchable(text string, err error) error {
	if len(text) > 200 {
		text = text[:200] + "..."
	}
	return apierror.BadRequest("Failed to parse search query: %s: %s", strings.ToValidUTF8(text, "?"), err)
}

// parseOrder reads "name, created_at desc". The default is the order of creation, so that
// documents which are created while a client reads pages appear on the last page.
func parseOrder(text string, fields search.Schema) ([]store.Order, error) {
	if strings.TrimSpace(text) == "" {
		return []store.Order{{Expr: "d.created_at", Type: "timestamptz"}}, nil
	}
	var names []string
	for name := range fields.Fields {
		names = append(names, name)
	}
	orders, err := rest.ParseOrder(strings.ToLower(text), names...)
	if err != nil {
		return nil, apierror.BadRequest("bad order value '%s': %s", rest.Shorten(text, 200), apierror.ReasonOf(err))
	}
	if len(orders) > 10 {
		return nil, apierror.BadRequest("bad order value: more than 10 fields")
	}
	var keys []store.Order
	for _, o := range orders {
		key, ok := fields.OrderBy(o.Field)
		if !ok {
			return nil, apierror.BadRequest("bad order value: cannot order by %q", o.Field)
		}
		key.Desc = o.Desc
		keys = append(keys, store.Order(key))
	}
	return keys, nil
}

// matches reports whether a watch's filter accepts a change.
func matches(f *search.Filter, c *store.Change) bool {
	return f.Match(func(field string) any {
		switch field {
		case "id", "name":
			return c.ID
		case "consumer_name":
			return c.Scope
		case "created_at":
			return c.CreatedAt.Truncate(time.Microsecond)
		case "type":
			return "Bundle"
		case "source":
			if spec, _, err := bundle.RecordsOf(c); err == nil {
				return spec.Source
			}
		}
		return nil
	})
}
