// Package rotation has the words by which a rotation of a control plane's key is ordered and reported: kinds of keys,
// steps, phases, and the order itself. An order goes unchanged from the stored spec of a Cluster over an annotation of
// the HostedCluster to the record of the control plane, so all three have these types.
//
// It contains no logic and imports nothing of ours.
package rotation

// Key is a kind of key of a control plane that can be replaced.
type Key string

// Kinds of keys.
const (
	ServiceAccountKey Key = "service-account" // signs the tokens of service accounts
	EncryptionKey     Key = "encryption"      // encrypts the Secrets in etcd
	CAKey             Key = "ca"              // signs the certificates of clients, nodes and the API server
)

// Keys are all kinds of keys, in the order in which lists show them.
var Keys = []Key{ServiceAccountKey, EncryptionKey, CAKey}

// Step is one of the two steps of a rotation.
type Step string

// Steps of a rotation. After Prepare the control plane uses a new key and accepts the old ones; after Complete it
// accepts the newest key only.
const (
	Prepare  Step = "prepare"
	Complete Step = "complete"
)

// Order orders a step of the rotation of one kind of key. The zero value stands for a key whose rotation was never
// ordered.
type Order struct {
	ID   string `json:"id"` // a-z, 0-9 and -; at most 63 characters; both steps of a rotation have the same
	Step Step   `json:"step"`
}

// Phase is the progress of a rotation.
type Phase string

// Phases of a rotation.
const (
	Preparing  Phase = "Preparing"
	Prepared   Phase = "Prepared"
	Completing Phase = "Completing"
	Completed  Phase = "Completed"
	Failed     Phase = "Failed" // the order was refused; the keys are as before
)

// IsFinal reports whether the phase is the last one of a rotation.
func (p Phase) IsFinal() bool { return p == Completed || p == Failed }
