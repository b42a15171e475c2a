package arm

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"atoll.dev/client/remote"
	"atoll.dev/ops"
	"atoll.dev/store"
)

// TestARefusalOfTheLifecycleManagerEndsAnOperation checks which answers end an operation, and with which code.
func TestARefusalOfTheLifecycleManagerEndsAnOperation(t *testing.T) {
	for _, c := range []struct {
		status int
		code   string
		kind   ops.EventKind
		want   string
	}{
		{403, "HYPERFLEET-LMT-002", ops.Fail, "QuotaExceeded"},
		{403, "HYPERFLEET-AUZ-001", ops.Fail, "AuthorizationFailed"},
		{400, "", ops.Fail, "InvalidRequestContent"},
		{401, "", ops.Fail, "AuthenticationFailed"},
		{404, "", ops.Fail, "NotFound"},
		{413, "", ops.Fail, "InvalidResource"},
		{418, "", ops.Fail, "InvalidRequestContent"},
		{422, "", ops.Fail, "InvalidRequestContent"},
		{408, "", ops.Retry, "ServiceUnavailable"},
		{409, "", ops.Retry, "Conflict"},
		{412, "", ops.Retry, "Conflict"},
		{429, "", ops.Retry, "ServiceUnavailable"},
		{500, "", ops.Retry, "InternalServerError"},
		{503, "", ops.Retry, "ServiceUnavailable"},
	} {
		event := failureOutcome(&remote.Error{Status: c.status, Code: c.code, Reason: "the reason"}).Event
		if event.Kind != c.kind || event.Error.Code != c.want || event.Error.Message != "the reason" {
			t.Errorf("%d %s: %s, %+v", c.status, c.code, event.Kind, event.Error)
		}
	}
	if event := failureOutcome(errors.New("secret")).Event; event.Kind != ops.Retry || event.Error.Code != codeInternal {
		t.Errorf("another error: %+v", event)
	}
}

// TestAResourceThatIsRemovedDuringARequestIsAConflict checks the answer to a write whose resource another request or
// another API has removed after the read: it was an internal error.
func TestAResourceThatIsRemovedDuringARequestIsAConflict(t *testing.T) {
	e := classify(fmt.Errorf("updating ArmCluster a: %w", store.ErrNotFound))
	if e == nil || e.Status != http.StatusConflict || e.RetryAfter == 0 {
		t.Errorf("%+v", e)
	}
}
