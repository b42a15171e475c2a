package customer

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/client/remote"
)

func clusterEvents(session *terminal.Session) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "events NAME",
		Short: "Show what happened to a cluster",
		Example: `  atoll cluster events demo
  atoll cluster events demo --follow`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completion(session, completeClusters),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "show further events until Ctrl-C or the cluster is gone")
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCluster(session, cmd.Context(), args[0], func(ctx context.Context, api *client.Client,
			cluster client.Cluster) error {
			if follow {
				return followEvents(session, ctx, api, client.ClusterID(cluster.ID), out)
			}
			all, err := api.ClusterEvents(ctx, client.ClusterID(cluster.ID))
			if err != nil {
				return err
			}
			return out.Print(session.Out, platform.EventList{Items: all}, func(w io.Writer) {
				rows := [][]string{{"TIME", "SINCE", "TYPE", "STAGE", "REASON", "MESSAGE"}}
				for _, e := range all {
					rows = append(rows, []string{e.Time.Local().Format("15:04:05.000"), sinceText(e), string(e.Type),
						terminal.DashIfEmpty(string(e.Stage)), e.Reason, e.Message})
				}
				terminal.Table(w, rows)
			})
		})
	}
	return cmd
}

// sinceText returns the time from the creation of the cluster to the event.
func sinceText(e platform.Event) string {
	return terminal.FormatDuration(time.Duration(e.SinceMs) * time.Millisecond)
}

// eventLine is the format of a row of a table that is printed while it grows.
const eventLine = "%-12s  %8s  %-7s  %-13s  %-24s  %s\n"

// followEvents prints each event of a cluster until Ctrl-C or the deletion of the cluster.
func followEvents(session *terminal.Session, ctx context.Context, api *client.Client, id client.ClusterID,
	out *terminal.Output) error {
	if out.Format == "table" {
		session.Printf(eventLine, "TIME", "SINCE", "TYPE", "STAGE", "REASON", "MESSAGE")
	}
	err := api.FollowClusterEvents(ctx, id, func(e platform.Event) error {
		if printed, err := out.PrintEvent(session.Out, e); printed || err != nil {
			return err
		}
		_, err := fmt.Fprintf(session.Out, eventLine, e.Time.Local().Format("15:04:05.000"), sinceText(e), e.Type,
			terminal.DashIfEmpty(string(e.Stage)), terminal.OneLine(e.Reason), terminal.OneLine(e.Message))
		return err
	})
	if remote.StatusOf(err) == http.StatusNotFound {
		fmt.Fprintln(session.Err, "the cluster is gone")
		return nil
	}
	return err
}
