package cluster

import (
	"encoding/json"
	"fmt"

	"atoll.dev/internal/jsonvalue"
)

// cutOrder returns a stored spec without a member that has an order, and the order; nil when the spec has no such
// member.
func cutOrder[T any](spec json.RawMessage, member string) (rest json.RawMessage, order *T, err error) {
	members, err := jsonvalue.DecodeAs[map[string]json.RawMessage](spec)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the stored spec: %w", err)
	}
	text := members[member]
	if text == nil {
		return spec, nil, nil
	}
	delete(members, member)
	if err := json.Unmarshal(text, &order); err != nil {
		return nil, nil, fmt.Errorf("reading %s of the stored spec: %w", member, err)
	}
	rest, err = json.Marshal(members)
	return rest, order, err
}

// addOrder returns a spec with an order in a member.
func addOrder(spec json.RawMessage, member string, order any) (json.RawMessage, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(spec, &members); err != nil {
		return nil, fmt.Errorf("reading the spec: %w", err)
	}
	text, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	members[member] = text
	return json.Marshal(members)
}
