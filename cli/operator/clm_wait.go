package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

// finishChange reports a change, waits with --wait, and prints the resource.
func finishChange(session *terminal.Session, ctx context.Context, l *clmConnection, in clmclient.Collection,
	r clmclient.Resource, verb string, f *terminal.WaitFlags, out *terminal.Output) error {
	progress := out.Progress(session)
	fmt.Fprintf(progress, "%s %s %s: id %s, generation %d\n", r.Kind, r.Name, verb, r.ID, r.Generation)
	if f.Wait {
		if err := awaitResource(session, ctx, l, in, r, resourceReconciled, f.Timeout, progress); err != nil {
			return err
		}
		var err error
		if r, err = l.Get(ctx, in, r.ID, ""); err != nil {
			return err
		}
	}
	return out.Print(session.Out, r, func(io.Writer) {})
}

func clmWait(session *terminal.Session) *cobra.Command {
	timeout, deleted := 2*time.Minute, false
	cmd := &cobra.Command{
		Use:   "wait KIND ID|NAME",
		Short: "Wait until a resource is reconciled, or deleted",
		Example: `  atoll clm wait clusters my-cluster --timeout 5m
  atoll clm wait clusters my-cluster --deleted`,
		Args: requireResource,
	}
	call := addCLMFlags(cmd)
	cmd.Flags().BoolVar(&deleted, "deleted", false, "wait until it is deleted")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait")
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *clmConnection) error {
			in, r, err := l.findOne(ctx, args)
			if deleted && remote.StatusOf(err) == http.StatusNotFound {
				session.Printf("%s does not exist\n", args[len(args)-1])
				return nil
			}
			if err != nil {
				return err
			}
			goal := resourceReconciled
			if deleted {
				goal = resourceGone
			}
			return awaitResource(session, ctx, l, in, r, goal, timeout, session.Out)
		})
	}
	return cmd
}

// errGoalReached ends a watch when the goal of the command is reached.
var errGoalReached = errors.New("the goal is reached")

// resourceGoal is the state of a resource that ends the wait of a command.
type resourceGoal string

const (
	resourceReconciled resourceGoal = "reconciled" // at the present generation
	resourceGone       resourceGoal = "gone"
)

// awaitResource watches a resource until the generation of r reaches the goal. It prints each new
// message of the Reconciled condition.
func awaitResource(session *terminal.Session, ctx context.Context, l *clmConnection, in clmclient.Collection,
	r clmclient.Resource, goal resourceGoal, timeout time.Duration, out io.Writer) error {
	start, lastMessage, seen := time.Now(), "", false
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("%s %s is not %s within %s; see `atoll clm why %s %s`", r.Kind, r.Name, goal, timeout, in, r.ID))
	defer cancel()
	err := l.Follow(ctx, in, remote.WatchOptions{Search: remote.SearchEqual("id", r.ID)}, func(e remote.Event) error {
		switch {
		case e.Type == remote.Relist:
			seen = false
			return nil
		case e.Type == rest.Deleted, e.Type == rest.Bookmark && !seen:
			if goal != resourceGone {
				return fmt.Errorf("%s %s was deleted meanwhile", r.Kind, r.Name)
			}
			return errGoalReached
		case e.Object == nil:
			return nil
		}
		seen = true
		now, err := clmclient.ResourceOf(e.Object)
		if err != nil {
			return err
		}
		cond := clmclient.Reconciled(now.Resource)
		if cond == nil && goal == resourceReconciled {
			return errGoalReached // the kind has no required adapters
		}
		if cond != nil && cond.Message != lastMessage {
			lastMessage = cond.Message
			fmt.Fprintf(out, "  %8s  %s\n", terminal.FormatDuration(time.Since(start)), terminal.OneLine(lastMessage))
		}
		if goal == resourceReconciled && cond.Status == "True" && now.Generation >= r.Generation {
			return errGoalReached
		}
		return nil
	})
	if errors.Is(err, errGoalReached) {
		fmt.Fprintf(out, "%s %s is %s (%s)\n", r.Kind, r.Name, goal, terminal.FormatDuration(time.Since(start)))
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(err, context.DeadlineExceeded) && cause != nil {
		return cause
	}
	return err
}
