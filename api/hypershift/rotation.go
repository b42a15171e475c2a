package hypershift

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/rotation"
)

// RotationsAnnotation of a HostedCluster is Atoll's: the last rotation.Order of each kind of key as a JSON object, by
// rotation.Key.
const RotationsAnnotation = "atoll.dev/rotations"

// RotationStatus is the state of the last rotation of one kind of key. No member is omitted: hosting merges the status
// into the stored one, and an omitted member would keep the value of an earlier rotation.
type RotationStatus struct {
	ID           string         `json:"id"`
	Phase        rotation.Phase `json:"phase"`
	Message      string         `json:"message"`
	PreparingAt  *metav1.Time   `json:"preparingAt"`
	PreparedAt   *metav1.Time   `json:"preparedAt"`
	CompletingAt *metav1.Time   `json:"completingAt"`
	CompletedAt  *metav1.Time   `json:"completedAt"`
}
