package operator

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/api/fleet"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
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

// interruptedMoves is a lifecycle manager that answers some reads of a placement with an error.
type interruptedMoves struct {
	*movesInMemory
	errs []error
}

func (m *interruptedMoves) Placement(ctx context.Context, id cluster.ID) (fleet.Placement, error) {
	if len(m.errs) > 0 {
		err := m.errs[0]
		m.errs = m.errs[1:]
		return fleet.Placement{}, err
	}
	return m.movesInMemory.Placement(ctx, id)
}

func TestAWaitForAMoveOutlivesARestartOfTheLifecycleManager(t *testing.T) {
	away := &remote.Error{Code: remote.CodeUnreachable, Reason: "connection refused"}
	denied := &remote.Error{Status: http.StatusForbidden, Reason: "denied"}
	for _, c := range []struct {
		errs []error
		want error
	}{
		{[]error{away, away}, nil},
		{[]error{away, denied}, denied},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := &interruptedMoves{&movesInMemory{placed: map[cluster.ID]fleet.Placement{"c": {ClusterID: "c",
				ManagementCluster: "source"}}, arrives: map[cluster.ID]time.Time{}}, c.errs}
			m.start("c")
			var progress bytes.Buffer
			p, err := awaitMove(t.Context(), m, m.placed["c"], fleet.Start, time.Minute, &progress)
			if !errors.Is(err, c.want) || err == nil && p.Move.Phase != fleet.Forwarding {
				t.Errorf("%+v, %v", p.Move, err)
			}
			if !strings.Contains(progress.String(), "connection refused") {
				t.Errorf("the progress is %q", &progress)
			}
		})
	}
}

// The operator reads why a move does not go on, once while he waits and in the error.
func TestAWaitForAMoveShowsWhyTheSourceWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &movesInMemory{placed: map[cluster.ID]fleet.Placement{"c": {ClusterID: "c", ManagementCluster: "source"}},
			arrives: map[cluster.ID]time.Time{}, waits: "c"}
		m.start("c")
		var progress bytes.Buffer
		_, err := awaitMove(t.Context(), m, m.placed["c"], fleet.Start, time.Minute, &progress)
		const want = "the move has not ended within 1m0s because source waits: there are no backups; it goes on, " +
			"see: atoll cluster trace c"
		if err == nil || err.Error() != want {
			t.Errorf("the error is %v, want %s", err, want)
		}
		if n := strings.Count(progress.String(), "source waits: there are no backups\n"); n != 1 {
			t.Errorf("the progress has the reason %d times:\n%s", n, &progress)
		}
	})
}
