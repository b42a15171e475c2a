package cluster

import (
	"encoding/json"
	"fmt"
)

// RotatedKey names a kind of key of a cluster's control plane that can be replaced.
type RotatedKey string

// Kinds of keys.
const (
	ServiceAccountKey RotatedKey = "service-account" // signs the tokens of service accounts
	EncryptionKey     RotatedKey = "encryption"      // encrypts the Secrets in etcd
)

// RotatedKeys are all kinds, in the order in which lists show them.
var RotatedKeys = []RotatedKey{ServiceAccountKey, EncryptionKey}

// RotationStep is one of the two steps of a rotation.
type RotationStep string

// Steps of a rotation. After RotationPrepare the control plane uses the new key and accepts the old one; after
// RotationComplete it accepts the new key only.
const (
	RotationPrepare  RotationStep = "prepare"
	RotationComplete RotationStep = "complete"
)

// RotationOrder is the last order for one kind of key.
type RotationOrder struct {
	ID   string       `json:"id"`
	Step RotationStep `json:"step"`
}

// Rotations is the member "rotations" of a cluster's stored spec: the last orders, by kind of key. The fronts write it
// by a request of its own; customers neither read nor change it with the spec. HostedCluster's annotation has the same
// shape.
type Rotations map[RotatedKey]RotationOrder

// RotationData is the state of the last rotation of one kind of key in a report of AdapterHostedCluster. Times are in
// RFC 3339; "" for a phase that the rotation has not reached.
type RotationData struct {
	ID           string `json:"id"`
	Phase        string `json:"phase"`
	Message      string `json:"message"`
	PreparingAt  string `json:"preparingAt"`
	PreparedAt   string `json:"preparedAt"`
	CompletingAt string `json:"completingAt"`
	CompletedAt  string `json:"completedAt"`
}

// Phases of a rotation.
const (
	RotationPreparing  = "Preparing"
	RotationPrepared   = "Prepared"
	RotationCompleting = "Completing"
	RotationCompleted  = "Completed"
	RotationFailed     = "Failed"
)

// IsFinal reports whether the rotation has ended.
func (d RotationData) IsFinal() bool {
	return d.Phase == RotationCompleted || d.Phase == RotationFailed
}

const rotationsMember = "rotations"

// ReadRotations returns the orders of rotations in a stored spec.
func ReadRotations(spec json.RawMessage) (Rotations, error) {
	_, orders, err := CutRotations(spec)
	return orders, err
}

// CutRotations returns a stored spec without the orders of rotations, and the orders.
func CutRotations(spec json.RawMessage) (json.RawMessage, Rotations, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(spec, &members); err != nil {
		return nil, nil, fmt.Errorf("reading the stored spec: %w", err)
	}
	text := members[rotationsMember]
	if text == nil {
		return spec, nil, nil
	}
	delete(members, rotationsMember)
	var orders Rotations
	if err := json.Unmarshal(text, &orders); err != nil {
		return nil, nil, fmt.Errorf("reading the orders of rotations: %w", err)
	}
	rest, err := json.Marshal(members)
	return rest, orders, err
}

// AddRotations returns a spec with the orders of rotations; none change nothing.
func AddRotations(spec json.RawMessage, orders Rotations) (json.RawMessage, error) {
	if len(orders) == 0 {
		return spec, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(spec, &members); err != nil {
		return nil, fmt.Errorf("reading the spec: %w", err)
	}
	text, err := json.Marshal(orders)
	if err != nil {
		return nil, err
	}
	members[rotationsMember] = text
	return json.Marshal(members)
}
