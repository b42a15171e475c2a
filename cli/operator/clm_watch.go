package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

func clmWatch(c *terminal.Session) *cobra.Command {
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
	call := addCLM(cmd)
	sel := addSelect(cmd)
	cmd.Flags().StringVar(&cursor, "cursor", "", "go on from the cursor of an earlier event")
	cmd.Flags().BoolVar(&changes, "changes", false, "leave out what exists already")
	cmd.MarkFlagsMutuallyExclusive("cursor", "changes")
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.ValidArgsFunction = completeResources(c, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(c, cmd.Context(), call, func(ctx context.Context, l *lifecycle) error {
			in, name, err := l.target(args)
			if err != nil {
				return err
			}
			o := remote.WatchOptions{Cursor: cursor, Search: sel.text()}
			if name != "" {
				r, err := l.named(ctx, in, name)
				if err != nil {
					return err
				}
				o.Search = alsoID(r.ID, o.Search)
			}
			if changes {
				now, err := l.List(ctx, in, clmclient.ResourceQuery{Size: 1, Fields: "id"})
				if err != nil {
					return err
				}
				o.Cursor = now.Cursor
			}
			if out.Format == "table" {
				c.Printf(watchLine, "TIME", "EVENT", "KIND", "NAME", "ID", "GEN", "RECONCILED", "MESSAGE")
			}
			return l.Follow(ctx, in, o, func(e remote.Event) error { return showEvent(c, e, l, out) })
		})
	}
	return cmd
}

// watchLine is a line of a table whose end nobody knows yet.
const watchLine = "%-12s  %-8s  %-17s  %-24s  %-36s  %4s  %-10s  %s\n"

// showEvent prints one event of a watch.
func showEvent(c *terminal.Session, e remote.Event, l *lifecycle, out *terminal.Output) error {
	switch out.Format {
	case "json":
		line, err := json.Marshal(e)
		if err == nil {
			_, err = c.Out.Write(append(line, '\n'))
		}
		return err
	case "yaml":
		text, err := yaml.Marshal(e)
		if err == nil {
			_, err = fmt.Fprintf(c.Out, "---\n%s", text)
		}
		return err
	}
	if e.Type == remote.Relist {
		_, err := fmt.Fprintln(c.Err, "changes may have been missed; what exists follows")
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
		_, err := fmt.Fprintf(c.Out, "%s %s/%s\n", e.Type, l.plural(r.Kind), r.ID)
		return err
	}
	state, _ := stateOf(r.Resource)
	message := ""
	if cond := clmclient.Reconciled(r.Resource); cond != nil {
		message = cond.Message
	}
	_, err = fmt.Fprintf(c.Out, watchLine, time.Now().Format("15:04:05.000"), e.Type, r.Kind, r.Name, r.ID,
		fmt.Sprint(r.Generation), state, terminal.OneLine(message))
	return err
}

func clmWait(c *terminal.Session) *cobra.Command {
	timeout, deleted := 2*time.Minute, false
	cmd := &cobra.Command{
		Use:   "wait KIND ID|NAME",
		Short: "Wait until a resource is reconciled, or gone",
		Example: `  atoll clm wait clusters my-cluster --timeout 5m
  atoll clm wait clusters my-cluster --deleted`,
		Args: oneResource,
	}
	call := addCLM(cmd)
	cmd.Flags().BoolVar(&deleted, "deleted", false, "wait until it is gone")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait")
	cmd.ValidArgsFunction = completeResources(c, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(c, cmd.Context(), call, func(ctx context.Context, l *lifecycle) error {
			in, r, err := l.one(ctx, args)
			if deleted && remote.StatusOf(err) == http.StatusNotFound {
				c.Printf("%s is not there\n", args[len(args)-1])
				return nil
			}
			if err != nil {
				return err
			}
			return waitFor(c, ctx, l, in, r, deleted, timeout, c.Out)
		})
	}
	return cmd
}

var errThere = errors.New("there")

// waitFor watches a resource until the generation that r has is reconciled, or
// until it is gone, and shows what its Reconciled condition says meanwhile.
func waitFor(c *terminal.Session, ctx context.Context, l *lifecycle, in clmclient.Collection, r clmclient.Resource,
	gone bool,
	timeout time.Duration, out io.Writer) error {
	begun, shown, seen := time.Now(), "", false
	goal := "reconciled"
	if gone {
		goal = "gone"
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("%s %s is not %s within %s; see `atoll clm why %s %s`", r.Kind, r.Name, goal, timeout, in, r.ID))
	defer cancel()
	err := l.Follow(ctx, in, remote.WatchOptions{Search: remote.Equal("id", r.ID)}, func(e remote.Event) error {
		switch {
		case e.Type == remote.Relist:
			seen = false
			return nil
		case e.Type == rest.Deleted, e.Type == rest.Bookmark && !seen:
			if !gone {
				return fmt.Errorf("%s %s was deleted meanwhile", r.Kind, r.Name)
			}
			return errThere
		case e.Object == nil:
			return nil
		}
		seen = true
		now, err := clmclient.ResourceOf(e.Object)
		if err != nil {
			return err
		}
		cond := clmclient.Reconciled(now.Resource)
		if cond == nil && !gone {
			return errThere // nobody works for resources of this kind
		}
		if cond != nil && cond.Message != shown {
			shown = cond.Message
			fmt.Fprintf(out, "  %8s  %s\n", terminal.Took(time.Since(begun)), terminal.OneLine(shown))
		}
		if !gone && cond.Status == "True" && now.Generation >= r.Generation {
			return errThere
		}
		return nil
	})
	if errors.Is(err, errThere) {
		fmt.Fprintf(out, "%s %s is %s (%s)\n", r.Kind, r.Name, goal, terminal.Took(time.Since(begun)))
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(err, context.DeadlineExceeded) && cause != nil {
		return cause
	}
	return err
}
