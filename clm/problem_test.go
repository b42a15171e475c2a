package clm

import (
	"context"
	"fmt"
	"testing"

	"atoll.dev/store"
)

// The store's errors have the statuses of the region's table and the codes of the contract.
func TestFaultsOfTheStoreHaveStatuses(t *testing.T) {
	for err, want := range map[error]string{
		store.ErrUnavailable:     "503 HYPERFLEET-SVC-001 1s",
		store.ErrConflict:        "503 HYPERFLEET-SVC-001 1s",
		store.ErrUnknownOutcome:  "503 HYPERFLEET-SVC-001 1s",
		store.ErrTimeout:         "504 HYPERFLEET-SVC-002 1s",
		context.DeadlineExceeded: "504 HYPERFLEET-SVC-002 1s",
		store.ErrFull:            "507 HYPERFLEET-SVC-001 10s",
		store.ErrStale:           "412 HYPERFLEET-CNF-002 0s",
		store.ErrExists:          "409 HYPERFLEET-CNF-001 0s",
		store.ErrNotFound:        "404 HYPERFLEET-NTF-001 0s",
		store.ErrGone:            "410 HYPERFLEET-CNF-003 0s",
		store.ErrInvalid:         "400 HYPERFLEET-VAL-005 0s",
	} {
		e := classify(fmt.Errorf("writing: %w", err))
		if e == nil || e.Reason == "" {
			t.Errorf("%v is not answered: %+v", err, e)
			continue
		}
		is(t, err.Error(), fmt.Sprint(e.Status, " ", wireCode(e), " ", e.RetryAfter), want)
	}
	// A database that is down also causes time-outs: the certain cause wins.
	down := fmt.Errorf("%w: %w", store.ErrUnavailable, context.DeadlineExceeded)
	is(t, "both", fmt.Sprint(classify(down).Status), "503")
	if e := classify(fmt.Errorf("a bug")); e != nil {
		t.Errorf("another error is answered: %+v", e)
	}
}
