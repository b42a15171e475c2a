package controlplane

import "atoll.dev/api/rotation"

// Rotations are the orders with whose steps a control plane starts, by kind of key. They are comparable.
type Rotations struct {
	ServiceAccount rotation.Order `json:"service_account,omitzero"`
	Encryption     rotation.Order `json:"encryption,omitzero"`
	CA             rotation.Order `json:"ca,omitzero"`
}

// Of returns the order for one kind of key.
func (r Rotations) Of(k rotation.Key) rotation.Order {
	switch k {
	case rotation.EncryptionKey:
		return r.Encryption
	case rotation.CAKey:
		return r.CA
	}
	return r.ServiceAccount
}

// With returns the orders with another one for one kind of key.
func (r Rotations) With(k rotation.Key, order rotation.Order) Rotations {
	switch k {
	case rotation.EncryptionKey:
		r.Encryption = order
	case rotation.CAKey:
		r.CA = order
	default:
		r.ServiceAccount = order
	}
	return r
}
