package rest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Page is the requested part of a list. Pages count from 1.
type Page struct {
	Number int
	Size   int
}

// Offset returns the number of items before the page.
func (p Page) Offset() int64 { return int64(p.Number-1) * int64(p.Size) }

// ParsePage reads the parameters page and size. An absent parameter has the value of
// defaults. A size above max becomes max; the service's answer shows the size used.
func ParsePage(r *http.Request, defaults Page, max int) (Page, error) {
	q, err := parseQuery(r)
	if err != nil {
		return Page{}, err
	}
	p := Page{Number: defaults.Number, Size: defaults.Size}
	if p.Number == 0 {
		p.Number = 1
	}
	if p.Number, err = readPositive(q, "page", p.Number); err != nil {
		return Page{}, err
	}
	if p.Size, err = readPositive(q, "size", p.Size); err != nil {
		return Page{}, err
	}
	p.Size = min(p.Size, max)
	return p, nil
}

// readPositive reads a parameter that must be above 0; absent is the default of a missing one.
func readPositive(q url.Values, name string, absent int) (int, error) {
	s := q.Get(name)
	if s == "" {
		return absent, nil
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 1 {
		return 0, Errorf(http.StatusBadRequest, CodeInvalid, "%s=%s is not a whole number above 0", name,
			Shorten(s, 32))
	}
	return int(n), nil
}

// parseQuery parses the query strictly: a parameter that cannot be decoded is an error,
// while URL.Query would omit it.
func parseQuery(r *http.Request) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, Errorf(http.StatusBadRequest, CodeInvalid, "the query cannot be decoded: %s", err)
	}
	return q, nil
}

// Order is one key of a sort.
type Order struct {
	Field string
	Desc  bool
}

// ParseOrder parses an order such as "name, created_at desc". It refuses fields that
// are not in allowed, so that no text of the request reaches SQL as a field name.
func ParseOrder(value string, allowed ...string) ([]Order, error) {
	if strings.TrimSpace(value) == "" {
		return nil, nil
	}
	var orders []Order
	for part := range strings.SplitSeq(value, ",") {
		words := strings.Fields(part)
		bad := len(words) == 0 || len(words) > 2
		desc := false
		if len(words) == 2 {
			switch strings.ToLower(words[1]) {
			case "asc":
			case "desc":
				desc = true
			default:
				bad = true
			}
		}
		if bad {
			return nil, Errorf(http.StatusBadRequest, CodeInvalid, "the order %q is not a field with asc or desc",
				Shorten(part, 64))
		}
		if !slices.Contains(allowed, words[0]) {
			return nil, Errorf(http.StatusBadRequest, CodeInvalid, "cannot order by %q; possible: %s",
				Shorten(words[0], 64), strings.Join(allowed, ", "))
		}
		orders = append(orders, Order{Field: words[0], Desc: desc})
	}
	return orders, nil
}

// Fields is a selection of members of a document. The zero value selects all.
type Fields struct{ root fieldTree }

// fieldTree has the selected members of an object by name; nil selects all members.
type fieldTree map[string]fieldTree

// ParseFields parses the parameter fields, such as "name,status.phase". The selection
// always contains id.
func ParseFields(r *http.Request) (Fields, error) {
	q, err := parseQuery(r)
	if err != nil {
		return Fields{}, err
	}
	value := strings.TrimSpace(strings.Join(q["fields"], ","))
	if value == "" || value == "*" {
		return Fields{}, nil
	}
	root := fieldTree{}
	for path := range strings.SplitSeq(value, ",") {
		if err := root.add(strings.TrimSpace(path)); err != nil {
			return Fields{}, err
		}
	}
	root["id"] = nil
	return Fields{root}, nil
}

// add selects the member at a path of names with dots between them.
func (t fieldTree) add(path string) error {
	names := strings.Split(path, ".")
	if slices.Contains(names, "") || len(names) > maxDepth {
		return Errorf(http.StatusBadRequest, CodeInvalid, "fields has %q, which names nothing", Shorten(path, 64))
	}
	for i, name := range names {
		sub, known := t[name]
		if known && sub == nil {
			return nil // the whole member is selected already
		}
		if i == len(names)-1 {
			t[name] = nil
			return nil
		}
		if !known {
			sub = fieldTree{}
			t[name] = sub
		}
		t = sub
	}
	return nil
}

// All reports whether all members are selected.
func (f Fields) All() bool { return f.root == nil }

// Select returns the selected members of a JSON document. In an array it
// selects from each element.
func (f Fields) Select(doc json.RawMessage) (json.RawMessage, error) {
	if f.All() {
		return doc, nil
	}
	return f.root.pick(doc)
}

// pick returns the selected members of doc, or of each element if doc is an array.
func (t fieldTree) pick(doc json.RawMessage) (json.RawMessage, error) {
	if t == nil {
		return doc, nil
	}
	switch trimmed := bytes.TrimSpace(doc); {
	case len(trimmed) > 0 && trimmed[0] == '{':
		var members map[string]json.RawMessage
		if err := json.Unmarshal(doc, &members); err != nil {
			return nil, fmt.Errorf("selecting fields: %w", err)
		}
		for name, value := range members {
			sub, ok := t[name]
			if !ok {
				delete(members, name)
				continue
			}
			picked, err := sub.pick(value)
			if err != nil {
				return nil, err
			}
			members[name] = picked
		}
		return json.Marshal(members)
	case len(trimmed) > 0 && trimmed[0] == '[':
		var elements []json.RawMessage
		if err := json.Unmarshal(doc, &elements); err != nil {
			return nil, fmt.Errorf("selecting fields: %w", err)
		}
		for i := range elements {
			picked, err := t.pick(elements[i])
			if err != nil {
				return nil, err
			}
			elements[i] = picked
		}
		return json.Marshal(elements)
	}
	return doc, nil
}
