package search

import "fmt"

// Schema declares how clients search and order a list.
type Schema struct {
	Table  string           // clients may write it before a field, as in resources.name
	Fields map[string]Field // by name, in lower case
	Limits Limits           // of a search text

	// OrderedText is the number of characters of a JSON field's text by which the field orders the list. The last
	// value of a page is in the token of the next page, so a service can bound it. 0: JSON fields order by their
	// values.
	OrderedText int
}

// Order is a key of an order in SQL. It converts to a store.Order.
type Order struct {
	Expr string // an expression without arguments
	Type string // its type in SQL
	Desc bool
}

// Parse reads a search text and checks it against the fields: it is Parse and Bind in one step. An error is an *Error.
func (s Schema) Parse(text string) (*Filter, error) {
	q, err := Parse(text, s.Limits)
	if err != nil {
		return nil, err
	}
	return q.Bind(s)
}

// OrderBy returns the ascending order by a field; ok is false when the list has no such field, or when the field
// is a group of fields, such as labels.
func (s Schema) OrderBy(name string) (o Order, ok bool) {
	f, ok := s.Fields[name]
	if !ok || f.Within != nil || f.Flat {
		return Order{}, false
	}
	if f.Type == JSON && s.OrderedText > 0 {
		return Order{Expr: fmt.Sprintf("left((%s)::text, %d)", f.SQL, s.OrderedText), Type: sqlTypes[Text]}, true
	}
	return Order{Expr: f.SQL, Type: sqlTypes[f.Type]}, true
}

// Only returns the schema with the named fields only. It panics when the schema has no field of a name.
func (s Schema) Only(names ...string) Schema {
	fields := make(map[string]Field, len(names))
	for _, name := range names {
		f, ok := s.Fields[name]
		if !ok {
			panic("search: the schema of " + s.Table + " has no field " + name)
		}
		fields[name] = f
	}
	s.Fields = fields
	return s
}
