package maestroclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/client/remote"
)

// maestroText finds Maestro's code in the text of a gRPC error, such as
// "failed to create resource: maestro-6: This Resource already exists".
var maestroText = regexp.MustCompile(`\bmaestro-([0-9]+): *`)

// notLatest is a part of the text of each refusal of a stale version; Maestro's clients search for
// it.
const notLatest = "the resource version is not the latest"

// newError converts the error of a gRPC call to a remote.Error. The message of a status
// is {"ErrStatus":{metav1.Status}} or, from the original Maestro, plain text. With
// ifMatch, the ETag that the call required, a conflict of versions is 412 and not 409.
func newError(ctx context.Context, err error, ifMatch string) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, remote.ErrNoAnswer) {
		return fmt.Errorf("calling Maestro: %w", cause)
	}
	s := status.Convert(err)
	var wire struct {
		ErrStatus *metav1.Status `json:"ErrStatus"`
	}
	e := &remote.Error{Reason: s.Message()}
	if json.Unmarshal([]byte(s.Message()), &wire) == nil && wire.ErrStatus != nil {
		e.Status, e.Reason = int(wire.ErrStatus.Code), wire.ErrStatus.Message
		if d := wire.ErrStatus.Details; d != nil {
			e.RetryAfter = time.Duration(d.RetryAfterSeconds) * time.Second
		}
	} else {
		switch s.Code() {
		case codes.Unavailable:
			return remote.NewUnreachableError("Maestro", err)
		case codes.DeadlineExceeded:
			return remote.NewUnreachableError("Maestro", remote.ErrNoAnswer)
		}
	}
	if at := maestroText.FindStringSubmatchIndex(e.Reason); at != nil {
		e.Code = "maestro-" + e.Reason[at[2]:at[3]]
		e.Reason = e.Reason[at[1]:]
	}
	if e.Status < 400 || e.Status > 599 || (e.Status == http.StatusInternalServerError && e.Code != "") {
		e.Status = statusOfText(s.Code(), e.Code, e.Reason)
	}
	if e.Code == "" {
		e.Code = "maestro-error"
	}
	if e.Status == http.StatusServiceUnavailable && e.RetryAfter == 0 {
		e.RetryAfter = time.Second
	}
	if ifMatch != "" && e.Status == http.StatusConflict && strings.Contains(e.Reason, notLatest) {
		e.Status = http.StatusPreconditionFailed
	}
	return e
}

// statusOfText returns the HTTP status of an error that has only codes and a text.
func statusOfText(c codes.Code, code, reason string) int {
	switch code {
	case "maestro-6":
		return http.StatusConflict
	case "maestro-7":
		return http.StatusNotFound
	case "maestro-8", "maestro-17", "maestro-21", "maestro-23":
		return http.StatusBadRequest
	case "maestro-9":
		if strings.Contains(reason, "23503") { // the original's foreign key: no such consumer
			return http.StatusNotFound
		}
	}
	switch c {
	case codes.ResourceExhausted:
		return http.StatusRequestEntityTooLarge
	case codes.InvalidArgument:
		return http.StatusBadRequest
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists, codes.Aborted:
		return http.StatusConflict
	case codes.FailedPrecondition:
		return http.StatusPreconditionFailed
	case codes.Unauthenticated, codes.PermissionDenied:
		return http.StatusForbidden
	}
	return http.StatusInternalServerError
}
