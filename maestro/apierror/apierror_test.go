package apierror

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

	"atoll.dev/store"
)

// What the store cannot do is answered as the region's table says, with a code of Maestro's, over gRPC, too.
func TestFaultsOfTheStoreHaveStatuses(t *testing.T) {
	for err, want := range map[error]struct {
		rest string
		grpc codes.Code
	}{
		store.ErrUnavailable:     {"503 maestro-503 1s", codes.Unavailable},
		store.ErrConflict:        {"503 maestro-503 1s", codes.Unavailable},
		store.ErrUnknownOutcome:  {"503 maestro-503 1s", codes.Unavailable},
		store.ErrTimeout:         {"504 maestro-503 1s", codes.Unavailable},
		context.DeadlineExceeded: {"504 maestro-503 1s", codes.Unavailable},
		store.ErrFull:            {"507 maestro-507 10s", codes.ResourceExhausted},
		store.ErrGone:            {"410 maestro-410 0s", codes.Internal},
		store.ErrInvalid:         {"400 maestro-8 0s", codes.InvalidArgument},
		&store.StaleError{}:      {"412 maestro-412 0s", codes.FailedPrecondition},
	} {
		e := Classify(fmt.Errorf("writing: %w", err))
		if e == nil {
			t.Errorf("%v is not answered", err)
			continue
		}
		code, _ := grpcReason(e)
		if got := fmt.Sprint(e.Status, " ", wireCode(e), " ", e.RetryAfter); got != want.rest || code != want.grpc {
			t.Errorf("%v: %s, %s; want %+v", err, got, code, want)
		}
	}
}
