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

func clmWatch(session *terminal.Session) *cobra.Command {
	var cursor string
	var changes bool
	cmd := &cobra.Command{
		Use:   "watch KIND [ID|NAME]",
		Short: "Show resources as they change, until Ctrl-C",
		Long: `Shows what exists, and then every change as it happens. The watch goes on when the
connection breaks; where changes may have been missed it says so and begins anew. With
-o json each line is an event with a cursor, from where --cursor continues later.`,
		Example: `  atoll clm watch clusters
  atoll clm watch all --changes --search "status.conditions.Reconciled='False'"
  atoll clm watch clusters my-cluster -o json`,
		Args: cobra.RangeArgs(1, 2),
	}
	call := addCLMFlags(cmd)
	sel := addSelectFlags(cmd)
	cmd.Flags().StringVar(&cursor, "cursor", "", "go on from the cursor of an earlier event")
	cmd.Flags().BoolVar(&changes, "changes", false, "leave out what exists already")
	cmd.MarkFlagsMutuallyExclusive("cursor", "changes")
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *lifecycle) error {
			in, name, err := l.parseTarget(args)
			if err != nil {
				return err
			}
			o := remote.WatchOptions{Cursor: cursor, Search: sel.condition()}
			if name != "" {
				r, err := l.find(ctx, in, name)
				if err != nil {
					return err
				}
				o.Search = withID(r.ID, o.Search)
			}
			if changes {
				now, err := l.List(ctx, in, clmclient.ResourceQuery{Size: 1, Fields: "id"})
				if err != nil {
					return err
				}
				o.Cursor = now.Cursor
			}
			if out.Format == "table" {
				session.Printf(watchLine, "TIME", "EVENT", "KIND", "NAME", "ID", "GEN", "RECONCILED", "MESSAGE")
			}
			return l.Follow(ctx, in, o, func(e remote.Event) error { return showEvent(session, e, l, out) })
		})
	}
	return cmd
}

// watchLine is the format of a row of a table that is printed while it grows.
const watchLine = "%-12s  %-8s  %-17s  %-24s  %-36s  %4s  %-10s  %s\n"

// showEvent prints one event of a watch.
func showEvent(session *terminal.Session, e remote.Event, l *lifecycle, out *terminal.Output) error {
	if printed, err := out.PrintEvent(session.Out, e); printed || err != nil {
		return err
	}
	if e.Type == remote.Relist {
		_, err := fmt.Fprintln(session.Err, "changes may have been missed; what exists follows")
		return err
	}
	if e.Object == nil {
		return nil
	}
	r, err := clmclient.ResourceOf(e.Object)
	if err != nil {
		return err
	}
	if out.Format == "name" {
		_, err := fmt.Fprintf(session.Out, "%s %s/%s\n", e.Type, l.plural(r.Kind), r.ID)
		return err
	}
	state, _ := stateOf(r.Resource)
	message := ""
	if cond := clmclient.Reconciled(r.Resource); cond != nil {
		message = cond.Message
	}
	_, err = fmt.Fprintf(session.Out, watchLine, time.Now().Format("15:04:05.000"), e.Type, r.Kind, r.Name, r.ID,
		fmt.Sprint(r.Generation), state, terminal.OneLine(message))
	return err
}

func clmWait(session *terminal.Session) *cobra.Command {
	timeout, deleted := 2*time.Minute, false
	cmd := &cobra.Command{
		Use:   "wait KIND ID|NAME",
		Short: "Wait until a resource is reconciled, or gone",
		Example: `  atoll clm wait clusters my-cluster --timeout 5m
  atoll clm wait clusters my-cluster --deleted`,
		Args: requireResource,
	}
	call := addCLMFlags(cmd)
	cmd.Flags().BoolVar(&deleted, "deleted", false, "wait until it is gone")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait")
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *lifecycle) error {
			in, r, err := l.findOne(ctx, args)
			if deleted && remote.StatusOf(err) == http.StatusNotFound {
				session.Printf("%s is not there\n", args[len(args)-1])
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
var errGoalReached = errors.New("there")

// resourceGoal is what a command waits for.
type resourceGoal string

const (
	resourceReconciled resourceGoal = "reconciled" // at the present generation
	resourceGone       resourceGoal = "gone"
)

// awaitResource watches a resource until the generation of r reaches the goal. It prints each new
// message of the Reconciled condition.
func awaitResource(session *terminal.Session, ctx context.Context, l *lifecycle, in clmclient.Collection,
	r clmclient.Resource, goal resourceGoal, timeout time.Duration, out io.Writer) error {
	start, lastMessage, seen := time.Now(), "", false
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("%s %s is not %s within %s; see `atoll clm why %s %s`", r.Kind, r.Name, goal, timeout, in, r.ID))
	defer cancel()
	err := l.Follow(ctx, in, remote.WatchOptions{Search: remote.Equal("id", r.ID)}, func(e remote.Event) error {
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
			fmt.Fprintf(out, "  %8s  %s\n", terminal.Took(time.Since(start)), terminal.OneLine(lastMessage))
		}
		if goal == resourceReconciled && cond.Status == "True" && now.Generation >= r.Generation {
			return errGoalReached
		}
		return nil
	})
	if errors.Is(err, errGoalReached) {
		fmt.Fprintf(out, "%s %s is %s (%s)\n", r.Kind, r.Name, goal, terminal.Took(time.Since(start)))
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(err, context.DeadlineExceeded) && cause != nil {
		return cause
	}
	return err
}
