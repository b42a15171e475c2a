package store

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// keysetSQL returns the condition that a row comes after the given keys.
func keysetSQL(order []Order, after []*string, arg func(any) string) string {
	if isUniform(order) { // PostgreSQL can begin there in an index
		var exprs, values []string
		for i, o := range order {
			if after[i] == nil {
				return "false" // these keys are never null, so the token is not from List
			}
			exprs, values = append(exprs, o.Expr), append(values, arg(*after[i])+"::text::"+o.Type)
		}
		op := ") > ("
		if order[0].Desc {
			op = ") < ("
		}
		return "(" + strings.Join(exprs, ", ") + op + strings.Join(values, ", ") + ")"
	}
	var alternatives []string
	equalSoFar := ""
	for i, o := range order {
		expr := "(" + o.Expr + ")"
		if after[i] == nil { // nulls are last: only nulls come after a null
			equalSoFar += expr + " is null and "
			continue
		}
		value := arg(*after[i]) + "::text::" + o.Type
		op := " > "
		if o.Desc {
			op = " < "
		}
		alternatives = append(alternatives, "("+equalSoFar+"("+expr+op+value+" or "+expr+" is null))")
		equalSoFar += expr + " = " + value + " and "
	}
	return "(" + strings.Join(alternatives, " or ") + ")"
}

// isUniform reports whether the order is that of a row comparison of its keys: all keys have one
// direction, and none can be null.
func isUniform(order []Order) bool {
	for _, o := range order {
		if !neverNull[o.Expr] || o.Desc != order[0].Desc {
			return false
		}
	}
	return true
}

// encodeAfter returns the page token for the keys of the last document of a page.
func encodeAfter(last [][]byte) string {
	keys := make([]*string, len(last))
	for i, k := range last {
		if k != nil {
			text := string(k)
			keys[i] = &text
		}
	}
	text, _ := json.Marshal(keys)
	return base64.RawURLEncoding.EncodeToString(text)
}

// decodeAfter returns the n keys in a page token, or ErrInvalid.
func decodeAfter(token string, n int) ([]*string, error) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	var keys []*string
	if err == nil {
		err = json.Unmarshal(text, &keys)
	}
	if err == nil && (len(keys) != n || keys[n-1] == nil) {
		err = errors.New("it belongs to another query")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: page token: %w", ErrInvalid, err)
	}
	return keys, nil
}
