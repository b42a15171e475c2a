package hypershift

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RotationsAnnotation of a HostedCluster is Atoll's: the last RotationOrder of each kind of key as a JSON object. The
// kinds are "service-account" and "encryption".
const RotationsAnnotation = "atoll.dev/rotations"

// RotationOrder orders a step of the rotation of a plane's key.
type RotationOrder struct {
	ID   string       `json:"id"` // a-z, 0-9 and -; at most 63 characters; both steps of a rotation have the same
	Step RotationStep `json:"step"`
}

// RotationStep is a step of a rotation.
type RotationStep string

// Steps of a rotation.
const (
	RotationPrepare  RotationStep = "prepare"  // the plane uses a new key and accepts the old one
	RotationComplete RotationStep = "complete" // the plane accepts the new key only
)

// RotationPhase says how far a rotation has come.
type RotationPhase string

// Phases of a rotation.
const (
	RotationPreparing  RotationPhase = "Preparing"
	RotationPrepared   RotationPhase = "Prepared"
	RotationCompleting RotationPhase = "Completing"
	RotationCompleted  RotationPhase = "Completed"
	RotationFailed     RotationPhase = "Failed" // the order was refused; the keys are as before
)

// RotationStatus is the state of the last rotation of one kind of key. No member is omitted: hosting merges the status
// into the stored one, and an omitted member would keep the value of an earlier rotation.
type RotationStatus struct {
	ID           string        `json:"id"`
	Phase        RotationPhase `json:"phase"`
	Message      string        `json:"message"`
	PreparingAt  *metav1.Time  `json:"preparingAt"`
	PreparedAt   *metav1.Time  `json:"preparedAt"`
	CompletingAt *metav1.Time  `json:"completingAt"`
	CompletedAt  *metav1.Time  `json:"completedAt"`
}
