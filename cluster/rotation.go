package cluster

import (
	"encoding/json"

	"atoll.dev/api/rotation"
)

// Rotations is the member "rotations" of a cluster's stored spec: the last orders, by kind of key. The fronts write it
// by a request of its own; customers neither read nor change it with the spec. HostedCluster's annotation has the same
// shape.
type Rotations map[rotation.Key]rotation.Order

// RotationData is the state of the last rotation of one kind of key in a report of AdapterHostedCluster. Times are in
// RFC 3339; "" for a phase that the rotation has not reached.
type RotationData struct {
	ID           string         `json:"id"`
	Phase        rotation.Phase `json:"phase"`
	Message      string         `json:"message"`
	PreparingAt  string         `json:"preparingAt"`
	PreparedAt   string         `json:"preparedAt"`
	CompletingAt string         `json:"completingAt"`
	CompletedAt  string         `json:"completedAt"`
}

const rotationsMember = "rotations"

// CutRotations returns a stored spec without the orders of rotations, and the orders.
func CutRotations(spec json.RawMessage) (json.RawMessage, Rotations, error) {
	rest, orders, err := cutOrder[Rotations](spec, rotationsMember)
	if orders == nil {
		return rest, nil, err
	}
	return rest, *orders, err
}

// AddRotations returns a spec with the orders of rotations; none change nothing.
func AddRotations(spec json.RawMessage, orders Rotations) (json.RawMessage, error) {
	if len(orders) == 0 {
		return spec, nil
	}
	return addOrder(spec, rotationsMember, orders)
}
