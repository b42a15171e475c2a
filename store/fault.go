package store

import (
	"context"
	"errors"

	"atoll.dev/internal/rest"
)

// faults has the fault with which services answer each error of the store. An error may wrap
// several of these; the first in the table counts, so lasting faults stand before temporary ones.
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

// FaultOf returns the fault of an error of the store; ok is false for other errors and for nil.
func FaultOf(err error) (f rest.Fault, ok bool) {
	for _, known := range faults {
		if errors.Is(err, known.err) {
			return known.fault, true
		}
	}
	return 0, false
}

// IsTransient reports whether the same call of the store can succeed later without a change of its arguments.
func IsTransient(err error) bool {
	for _, known := range []error{ErrUnavailable, ErrTimeout, ErrConflict, ErrFull, ErrUnknownOutcome,
		context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}
