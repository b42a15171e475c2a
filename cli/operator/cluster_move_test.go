package operator

import (
	"errors"
	"testing"

	"atoll.dev/api/fleet"
)

func TestAWaitForAMoveEndsWithItsStep(t *testing.T) {
	for _, c := range []struct {
		step     fleet.MoveStep
		phase    fleet.MovePhase
		hasEnded bool
		err      error
	}{
		{fleet.Start, fleet.Moving, false, nil},
		{fleet.Start, fleet.Canceling, false, nil},
		{fleet.Start, fleet.Removing, false, nil},
		{fleet.Start, fleet.Forwarding, true, nil},
		{fleet.Start, fleet.Canceled, true, errCanceled},
		{fleet.Cancel, fleet.Canceled, true, nil},
		{fleet.Cancel, fleet.Forwarding, true, nil}, // too late
		{fleet.Finish, fleet.Forwarding, false, nil},
		{fleet.Finish, fleet.Ending, false, nil},
		{fleet.Finish, fleet.Moved, true, nil},
		{fleet.Recover, fleet.Recovering, false, nil},
		{fleet.Recover, fleet.Ending, true, nil},
		{fleet.Recover, fleet.Moved, true, nil},
	} {
		ended, err := hasEnded(fleet.Move{Phase: c.phase}, c.step)
		if ended != c.hasEnded || !errors.Is(err, c.err) {
			t.Errorf("%s while %s: %t, %v", c.step, c.phase, ended, err)
		}
	}
}
