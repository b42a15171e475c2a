package customer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/client/remote"
)

func clusterWatch(session *terminal.Session) *cobra.Command {
	var cursor string
	cmd := &cobra.Command{
		Use:   "watch [NAME]",
		Short: "Show the progress of a cluster, or the changes of all clusters, until Ctrl-C",
		Long: `With a NAME it shows the cluster's stages and how long each took: it redraws them on a
terminal, and prints a line for each elsewhere. Without a NAME it shows all clusters, and
then each change. With -o json each line is an event with a cursor, at which --cursor
continues later.`,
		Example: `  atoll cluster watch demo
  atoll cluster watch -o json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completion(session, completeClusters),
	}
	cmd.Flags().StringVar(&cursor, "cursor", "", "with -o: go on from the cursor of an earlier event")
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			o := remote.WatchOptions{Cursor: cursor}
			if len(args) > 0 {
				cluster, err := findCluster(ctx, api, args[0])
				if err != nil {
					return err
				}
				if out.Format == "table" {
					return watchOne(session, ctx, api, cluster.Cluster)
				}
				o.ID = cluster.ID
			}
			if out.Format == "table" {
				session.Printf(clusterLine, "TIME", "EVENT", "NAME", "STATUS", "VERSION", "MESSAGE")
			}
			return api.FollowClusters(ctx, o, func(e remote.Event) error { return showCluster(session, e, out) })
		})
	}
	return cmd
}

// watchOne shows one cluster until Ctrl-C or its deletion.
func watchOne(session *terminal.Session, ctx context.Context, api *client.Client, cluster platform.Cluster) error {
	pools, err := api.NodePools(ctx, client.NodePoolQuery{Cluster: client.ClusterID(cluster.ID)})
	if err != nil {
		return err
	}
	d := newDisplay(session.Out, cluster, lastStageWith(len(pools)))
	err = followCluster(ctx, api, client.ClusterID(cluster.ID), func(update clusterUpdate) error {
		if update.gone {
			d.phase = "Deleted"
			d.show()
			return errGoalReached
		}
		d.apply(update)
		return nil
	}, func() error { d.show(); return nil })
	if errors.Is(err, errGoalReached) {
		session.Printf("cluster %s is gone\n", cluster.Name)
		return nil
	}
	return err
}

// clusterLine is the format of a row of a table that is printed while it grows.
const clusterLine = "%-12s  %-8s  %-24s  %-20s  %-8s  %s\n"

// showCluster prints one event of a watch.
func showCluster(session *terminal.Session, e remote.Event, out *terminal.Output) error {
	if printed, err := out.PrintEvent(session.Out, e); printed || err != nil {
		return err
	}
	if e.Type == remote.Relist {
		_, err := fmt.Fprintln(session.Err, "changes may have been missed; what exists follows")
		return err
	}
	if len(e.Object) == 0 {
		return nil
	}
	var cluster platform.Cluster
	if err := json.Unmarshal(e.Object, &cluster); err != nil {
		return fmt.Errorf("watching clusters: %w", err)
	}
	if out.Format == "name" {
		_, err := fmt.Fprintf(session.Out, "%s %s\n", e.Type, cluster.Name)
		return err
	}
	_, err := fmt.Fprintf(session.Out, clusterLine, time.Now().Format("15:04:05.000"), e.Type, cluster.Name,
		phaseOf(cluster),
		terminal.DashIfEmpty(cluster.Status.Version), terminal.OneLine(cluster.Status.Message))
	return err
}
