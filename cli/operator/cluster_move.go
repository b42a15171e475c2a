package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/fleet"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/pause"
)

// moveFlags are the flags of "atoll cluster move".
type moveFlags struct {
	to                      string
	cancel, finish, recover bool
}

func clusterMove(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "move NAME | ID",
		Short: "Move a cluster's control plane to another management cluster",
		Long: `Moves the control plane of a cluster to another management cluster that has the same store of
backups. Without --to the region chooses the target as for a new cluster. The region reserves
room on the target at once; the room on the source is free when the control plane has arrived.
No acknowledged write is lost; the API does not answer for some seconds.

The source then forwards the connections of old kubeconfigs, for 7 days by default; --finish
ends that now. --cancel keeps the control plane on the source, unless the target has it
already: then the move goes on, and the phase is Forwarding.

--recover is for a source that is lost: the target makes the control plane from its backup,
which may miss the last ten seconds of writes. "atoll mc lost" recovers all clusters of a
management cluster.`,
		Example: `  atoll cluster move demo --wait
  atoll cluster move demo --to edge-7
  atoll cluster move demo --cancel --wait
  atoll cluster move demo --finish
  atoll cluster move demo --recover --wait`,
		Args: cobra.ExactArgs(1),
	}
	f := &moveFlags{}
	cmd.Flags().StringVar(&f.to, "to", "", "the management cluster; default: the region chooses it")
	cmd.Flags().BoolVar(&f.cancel, "cancel", false, "cancel the move of the cluster")
	cmd.Flags().BoolVar(&f.finish, "finish", false,
		"end the forwarding and delete the source's objects; old kubeconfigs end")
	cmd.Flags().BoolVar(&f.recover, "recover", false, "the source is lost: make the control plane from its backup")
	cmd.MarkFlagsMutuallyExclusive("to", "cancel", "finish")
	cmd.MarkFlagsMutuallyExclusive("recover", "cancel", "finish")
	wait := terminal.AddWaitFlags(cmd, "moved")
	call, out := addCLMFlags(cmd), terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *clmConnection) error {
			r, err := l.findTraced(ctx, args[0])
			if err != nil {
				return err
			}
			o := fleet.MoveOrder{Step: fleet.Start, To: f.to}
			switch {
			case f.cancel:
				o.Step = fleet.Cancel
			case f.finish:
				o.Step = fleet.Finish
			case f.recover:
				o.Step = fleet.Recover
			}
			p, err := l.Move(ctx, cluster.ID(r.ID), o)
			if err != nil {
				return err
			}
			if wait.Wait {
				if p, err = awaitMove(ctx, l, p, o.Step, wait.Timeout, out.Progress(session)); err != nil {
					return err
				}
			}
			return out.Print(session.Out, p, func(w io.Writer) {
				fmt.Fprintf(w, "the move of %s from %s to %s is %s\n", r.Name, p.Move.From, p.Move.To, p.Move.Phase)
			})
		})
	}
	return cmd
}

// errCanceled is the error of a wait for a move that did not take place.
var errCanceled = errors.New("the control plane stays on its management cluster")

// hasEnded reports whether a step of a move has come to its end, and the error of a move that did not take place.
func hasEnded(m fleet.Move, step fleet.MoveStep) (bool, error) {
	switch m.Phase {
	case fleet.Forwarding:
		return step != fleet.Finish, nil
	case fleet.Ending: // the target of a recovery has the control plane
		return step == fleet.Recover, nil
	case fleet.Moved:
		return true, nil
	case fleet.Canceled:
		if step == fleet.Cancel {
			return true, nil
		}
		return true, fmt.Errorf("move %s was canceled: %w: %s", m.ID, errCanceled, m.Message)
	}
	return false, nil
}

// errMoveGoesOn is the cause of the end of a wait for a move that takes longer than the wait may.
var errMoveGoesOn = errors.New("the move has not ended in time")

// awaitMove reads a placement each second until a step of its move has ended. It prints each new phase, and the reason
// for which the source waits. While the lifecycle manager does not answer, awaitMove goes on: the move does, too.
func awaitMove(ctx context.Context, l moveWatcher, p fleet.Placement, step fleet.MoveStep, timeout time.Duration,
	progress io.Writer) (fleet.Placement, error) {
	id, phase, reason := p.Move.ID, fleet.MovePhase(""), ""
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errMoveGoesOn)
	defer cancel()
	for {
		if p.Move.Phase != phase {
			phase = p.Move.Phase
			fmt.Fprintf(progress, "%s: from %s to %s\n", phase, p.Move.From, p.Move.To)
		}
		if isOver, err := hasEnded(*p.Move, step); isOver || err != nil {
			return p, err
		}
		pause.For(ctx, time.Second)
		next, err := l.Placement(ctx, cluster.ID(p.ClusterID))
		if ctx.Err() != nil {
			return p, waitError(ctx, p, timeout, reason)
		}
		if e, isAnswer := errors.AsType[*remote.Error](err); isAnswer && e.IsRetryable(remote.Repeatable) {
			fmt.Fprintf(progress, "the placement cannot be read; it is read again: %s\n", terminal.OneLine(err.Error()))
			continue
		}
		if err != nil {
			return p, err
		}
		if next.Move == nil || next.Move.ID != id {
			return next, fmt.Errorf("the move %s is over, and another one has begun", id)
		}
		p = next
		if why := waitReason(ctx, l, p); why != "" && why != reason {
			reason = why
			fmt.Fprintf(progress, "%s waits: %s\n", p.Move.At, terminal.OneLine(reason))
		}
	}
}

// waitReason returns why the management cluster of a placement waits in the placement's move; "" when it does not, or
// when that cannot be read: the reason is only shown.
func waitReason(ctx context.Context, l moveWatcher, p fleet.Placement) string {
	if p.Move.Phase != fleet.Moving && p.Move.Phase != fleet.Recovering {
		return ""
	}
	m, err := l.MoveReport(ctx, cluster.ID(p.ClusterID))
	if err != nil || m.ID != p.Move.ID {
		return ""
	}
	return m.Message
}

// waitError returns the error of a wait for a move whose context has ended.
func waitError(ctx context.Context, p fleet.Placement, timeout time.Duration, reason string) error {
	err := context.Cause(ctx)
	if !errors.Is(err, errMoveGoesOn) {
		return err
	}
	if reason != "" {
		reason = fmt.Sprintf(" because %s waits: %s", p.Move.At, reason)
	}
	return fmt.Errorf("the move has not ended within %s%s; it goes on, see: atoll cluster trace %s", timeout, reason,
		p.ClusterID)
}
