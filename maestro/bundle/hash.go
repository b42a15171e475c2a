package bundle

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/work"
	"atoll.dev/internal/jsonvalue"
)

// DeletedCondition returns the condition of a bundle that a consumer has deleted.
func DeletedCondition(consumer work.Consumer, at time.Time) metav1.Condition {
	return metav1.Condition{
		Type: work.ConditionDeleted, Status: metav1.ConditionTrue, Reason: work.ReasonDeleted,
		Message: fmt.Sprintf(work.MessageDeletedFormat, consumer), LastTransitionTime: metav1.NewTime(at),
	}
}

// HashOf returns the hash by which an agent and this server compare statuses: the hash
// that the agent sent, or the hash that it would compute.
func HashOf(r Status) (string, error) {
	if r.Hash != "" {
		return r.Hash, nil
	}
	if r.IsEmpty() {
		return EmptyHash, nil
	}
	var sd StatusData
	if err := json.Unmarshal(r.Data, &sd); err != nil {
		return "", err
	}
	status := map[string]any{}
	if len(sd.Conditions) > 0 {
		status["conditions"] = sd.Conditions
	}
	status["resourceStatus"] = map[string]any{}
	if len(sd.ResourceStatus) > 0 {
		status["resourceStatus"] = map[string]any{"manifests": sd.ResourceStatus}
	}
	// Through any, so that all keys are sorted.
	raw, err := json.Marshal(status)
	if err != nil {
		return "", err
	}
	v, err := jsonvalue.Decode(raw)
	if err != nil {
		return "", err
	}
	if raw, err = json.Marshal(v); err != nil {
		return "", err
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}

// EmptyHash is the hash of no status.
var EmptyHash = func() string {
	sum := sha256.Sum256(nil)
	return hex.EncodeToString(sum[:])
}()
