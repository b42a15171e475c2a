package store

import (
	"context"
	"errors"

	"atoll.dev/internal/rest"
)

// faults are the store's errors as services answer them. An error may be several of these, and is then the first:
// what is certain comes before what may pass.
var faults = []struct {
	err   error
	fault rest.Fault
}{
	{ErrFull, rest.FaultFull},
	{ErrUnknownOutcome, rest.FaultUnknownOutcome},
	{ErrStale, rest.FaultStale},
	{ErrExists, rest.FaultExists},
	{ErrNotFound, rest.FaultNotFound},
	{ErrGone, rest.FaultGone},
	{ErrInvalid, rest.FaultInvalid},
	{ErrConflict, rest.FaultBusy},
	{ErrUnavailable, rest.FaultUnavailable},
	{ErrTimeout, rest.FaultTimeout},
	{context.DeadlineExceeded, rest.FaultTimeout},
}

// FaultOf returns which fault an error of the store is; ok is false for other errors.
func FaultOf(err error) (f rest.Fault, ok bool) {
	for _, known := range faults {
		if errors.Is(err, known.err) {
			return known.fault, true
		}
	}
	return 0, false
}
