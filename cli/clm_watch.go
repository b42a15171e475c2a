package cli

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

	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

func (c *command) clmWatch() *cobra.Command {
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
	out := addOutput(cmd, "name")
	cmd.ValidArgsFunction = c.completeResources(call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.callCLM(cmd.Context(), call, func(ctx context.Context, l *lifecycle) error {
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
			if out.format == "table" {
				c.printf(watchLine, "TIME", "EVENT", "KIND", "NAME", "ID", "GEN", "RECONCILED", "MESSAGE")
			}
			return l.Follow(ctx, in, o, func(e remote.Event) error { return c.showEvent(e, l, out) })
		})
	}
	return cmd
}

// watchLine is a line of a table whose end nobody knows yet.
const watchLine = "%-12s  %-8s  %-17s  %-24s  %-36s  %4s  %-10s  %s\n"

// showEvent prints one event of a watch.
func (c *command) showEvent(e remote.Event, l *lifecycle, out *output) error {
	switch out.format {
	case "json":
		line, err := json.Marshal(e)
		if err == nil {
			_, err = c.out.Write(append(line, '\n'))
		}
		return err
	case "yaml":
		text, err := yaml.Marshal(e)
		if err == nil {
			_, err = fmt.Fprintf(c.out, "---\n%s", text)
		}
		return err
	}
	if e.Type == remote.Relist {
		_, err := fmt.Fprintln(c.err, "changes may have been missed; what exists follows")
		return err
	}
	if e.Object == nil {
		return nil
	}
	r, err := clmclient.ResourceOf(e.Object)
	if err != nil {
		return err
	}
	if out.format == "name" {
		_, err := fmt.Fprintf(c.out, "%s %s/%s\n", e.Type, l.plural(r.Kind), r.ID)
		return err
	}
	state, _ := stateOf(r.Resource)
	message := ""
	if cond := clmclient.Reconciled(r.Resource); cond != nil {
		message = cond.Message
	}
	_, err = fmt.Fprintf(c.out, watchLine, time.Now().Format("15:04:05.000"), e.Type, r.Kind, r.Name, r.ID,
		fmt.Sprint(r.Generation), state, oneLine(message))
	return err
}

func (c *command) clmWait() *cobra.Command {
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
	cmd.ValidArgsFunction = c.completeResources(call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.callCLM(cmd.Context(), call, func(ctx context.Context, l *lifecycle) error {
			in, r, err := l.one(ctx, args)
			if deleted && remote.StatusOf(err) == http.StatusNotFound {
				c.printf("%s is not there\n", args[len(args)-1])
				return nil
			}
			if err != nil {
				return err
			}
			return c.waitFor(ctx, l, in, r, deleted, timeout, c.out)
		})
	}
	return cmd
}

var errThere = errors.New("there")

// waitFor watches a resource until the generation that r has is reconciled, or
// until it is gone, and shows what its Reconciled condition says meanwhile.
func (c *command) waitFor(ctx context.Context, l *lifecycle, in clmclient.Collection, r clmclient.Resource, gone bool,
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
			fmt.Fprintf(out, "  %8s  %s\n", took(time.Since(begun)), oneLine(shown))
		}
		if !gone && cond.Status == "True" && now.Generation >= r.Generation {
			return errThere
		}
		return nil
	})
	if errors.Is(err, errThere) {
		fmt.Fprintf(out, "%s %s is %s (%s)\n", r.Kind, r.Name, goal, took(time.Since(begun)))
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(err, context.DeadlineExceeded) && cause != nil {
		return cause
	}
	return err
}
