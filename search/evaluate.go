package search

import (
	"encoding/json"
	"math"
	"time"
)

func (x fieldRef) eval(e *evaluation) any {
	if x.definition.Type != JSON {
		v := e.valueOf(x.field)
		if t, ok := v.(time.Time); ok {
			return t.Truncate(time.Microsecond)
		}
		return v
	}
	doc, ok := e.documents[x.field]
	if !ok {
		if raw, _ := e.valueOf(x.field).(json.RawMessage); raw != nil {
			doc = decodeJSON(raw)
		}
		e.documents[x.field] = doc
	}
	for _, key := range x.path {
		object, ok := doc.(map[string]any)
		if !ok {
			return nil
		}
		if doc, ok = object[key]; !ok {
			return nil
		}
	}
	if len(x.path) == 0 {
		return doc
	}
	switch x.typ {
	case Text:
		return jsonText(doc)
	case float:
		if n, ok := doc.(json.Number); ok {
			f, _ := n.Float64()
			return f
		}
		return nil
	case Bool:
		if b, ok := doc.(bool); ok {
			return b
		}
		return nil
	}
	return doc
}

func (x constant) eval(*evaluation) any { return x.value }

func (x calculation) eval(e *evaluation) any {
	numberOf := func(x expr) (float64, bool) {
		switch v := x.eval(e).(type) {
		case float64:
			return v, true
		case int64:
			return float64(v), true
		}
		return 0, false
	}
	l, ok := numberOf(x.left)
	if !ok || x.op == conversion {
		if !ok {
			return nil
		}
		return l
	}
	r, ok := numberOf(x.right)
	if !ok {
		return nil
	}
	switch x.op {
	case '+':
		return float64(l + r)
	case '-':
		return float64(l - r)
	case '*':
		return float64(l * r)
	}
	if r == 0 {
		return nil // PostgreSQL would fail the whole search, so Filter.SQL has nullif
	}
	if x.op == '%' {
		return math.Mod(l, r)
	}
	if q := float64(l / r); x.whole {
		return math.Trunc(q)
	} else {
		return q
	}
}
