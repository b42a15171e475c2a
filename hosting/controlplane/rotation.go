package controlplane

import "atoll.dev/api/rotation"

// Rotations are the orders with whose steps a control plane starts, by kind of key. They are comparable.
type Rotations struct {
	ServiceAccount rotation.Order `json:"service_account,omitzero"`
	Encryption     rotation.Order `json:"encryption,omitzero"`
}

// Of returns the order for one kind of key.
func (r Rotations) Of(k rotation.Key) rotation.Order {
	if k == rotation.EncryptionKey {
		return r.Encryption
	}
	return r.ServiceAccount
}

// With returns the orders with another one for one kind of key.
func (r Rotations) With(k rotation.Key, order rotation.Order) Rotations {
	if k == rotation.EncryptionKey {
		r.Encryption = order
		return r
	}
	r.ServiceAccount = order
	return r
}
