package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
)

func clmWatch(session *terminal.Session) *cobra.Command {
	var cursor string
	var changesOnly bool
	cmd := &cobra.Command{
		Use:   "watch KIND [ID|NAME]",
		Short: "Show resources as they change, until Ctrl-C",
		Long: `Shows existing resources, and then every change as it happens. The watch continues after a
broken connection; when it may have missed changes, it prints a notice and shows the existing
resources again. With -o json each line is an event with a cursor, at which --cursor continues.`,
		Example: `  atoll clm watch clusters
  atoll clm watch all --changes --search "status.conditions.Reconciled='False'"
  atoll clm watch clusters my-cluster -o json`,
		Args: cobra.RangeArgs(1, 2),
	}
	call := addCLMFlags(cmd)
	sel := addSelectFlags(cmd)
	cmd.Flags().StringVar(&cursor, "cursor", "", "continue after the event with this cursor")
	cmd.Flags().BoolVar(&changesOnly, "changes", false, "show changes only, not the existing resources")
	cmd.MarkFlagsMutuallyExclusive("cursor", "changes")
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *clmConnection) error {
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
			if changesOnly {
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
func showEvent(session *terminal.Session, e remote.Event, l *clmConnection, out *terminal.Output) error {
	if printed, err := out.PrintEvent(session.Out, e); printed || err != nil {
		return err
	}
	if e.Type == remote.Relist {
		_, err := fmt.Fprintln(session.Err, "changes may have been missed; the existing resources follow")
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
		_, err := fmt.Fprintf(session.Out, "%s %s/%s\n", e.Type, l.pluralOf(r.Kind), r.ID)
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
