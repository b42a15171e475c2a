package loop

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// IsGone reports whether an API server answered that an object does not exist.
// A 404 for the object's whole kind is no such answer: an API server that has
// just started, or whose CustomResourceDefinition is being replaced, proves nothing
// about the objects. A caller that takes it for their end deletes what belongs to
// them.
func IsGone(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || apierrors.IsUnexpectedServerError(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name != "" // of the object
}
