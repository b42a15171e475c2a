package controlplane

// Key is a kind of key of a control plane that can be rotated.
type Key string

// Kinds of keys.
const (
	ServiceAccountKey Key = "service-account" // signs the tokens of service accounts
	EncryptionKey     Key = "encryption"      // encrypts the Secrets in etcd
)

// Keys are all kinds of keys.
var Keys = []Key{ServiceAccountKey, EncryptionKey}

// RotationStep is a step of a rotation.
type RotationStep string

// Steps of a rotation. A control plane that starts with Prepare uses a new key and accepts the old ones. A control
// plane that starts with Complete accepts the newest key only.
const (
	Prepare  RotationStep = "prepare"
	Complete RotationStep = "complete"
)

// Rotation is the rotation of one kind of key. The zero value stands for a key that was never rotated.
type Rotation struct {
	ID   string       `json:"id"`
	Step RotationStep `json:"step"`
}

// Rotations are the rotations with which a control plane starts, by kind of key. They are comparable.
type Rotations struct {
	ServiceAccount Rotation `json:"service_account,omitzero"`
	Encryption     Rotation `json:"encryption,omitzero"`
}

// Of returns the rotation of one kind of key.
func (r Rotations) Of(k Key) Rotation {
	if k == EncryptionKey {
		return r.Encryption
	}
	return r.ServiceAccount
}

// With returns the rotations with another one for one kind of key.
func (r Rotations) With(k Key, rotation Rotation) Rotations {
	if k == EncryptionKey {
		r.Encryption = rotation
		return r
	}
	r.ServiceAccount = rotation
	return r
}
