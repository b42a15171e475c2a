package operator

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/fleet"
	"atoll.dev/cli/terminal"
	"atoll.dev/cluster"
)

func mcOrphans(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "orphans [MC]",
		Short: "List works and reserved capacity of clusters that no longer exist",
		Long: `Lists works of clusters that the lifecycle manager does not have any more, works that
only an agent has, and room that is still reserved after a forced deletion: kind,
management cluster, age and size.

Orphans are left by "atoll clm force-delete" and by the restore of a database. Their room
is free when the management cluster has confirmed their deletion.`,
		Example: "  atoll mc orphans\n  atoll mc orphans edge-7 -o json\n  atoll mc orphans end edge-7 ID --reason " +
			"\"the customer has left\"",
		Args: cobra.MaximumNArgs(1),
	}
	call := addCLMFlags(cmd)
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		mc := strings.Join(args, "")
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *clmConnection) error {
			list, err := l.Orphans(ctx, cluster.ManagementCluster(mc))
			if err != nil {
				return err
			}
			if list == nil {
				list = []fleet.Orphan{}
			}
			return out.Print(session.Out, list, func(w io.Writer) { orphanTable(w, list, time.Now()) })
		})
	}
	cmd.AddCommand(mcOrphansEnd(session))
	return cmd
}

func orphanTable(w io.Writer, list []fleet.Orphan, now time.Time) {
	rows := [][]string{{"MANAGEMENT CLUSTER", "ID", "KIND", "CLUSTER", "SINCE", "SIZE", "REMOVED BY", "WHAT"}}
	for _, o := range list {
		var size []string
		for _, name := range slices.Sorted(maps.Keys(o.Size)) {
			size = append(size, fmt.Sprintf("%s=%d", name, o.Size[name]))
		}
		what := terminal.DashIfEmpty(strings.Join(o.What, ", "))
		if o.EndingSince != nil {
			what = "being deleted for " + terminal.FormatAge(*o.EndingSince, now) + ": " + what
		}
		rows = append(rows, []string{o.ManagementCluster, o.ID, string(o.Kind), terminal.DashIfEmpty(o.ClusterID),
			terminal.FormatAge(o.Since, now),
			terminal.DashIfEmpty(strings.Join(size, ",")), terminal.DashIfEmpty(o.RemovedBy), what})
	}
	terminal.Table(w, rows)
}

func mcOrphansEnd(session *terminal.Session) *cobra.Command {
	var reason string
	var free bool
	cmd := &cobra.Command{
		Use:   "end MC ID",
		Short: "Order a management cluster to delete an orphan",
		Long: `Orders a management cluster to delete an orphan. ID is that of one orphan, or of a cluster
that no longer exists: then all of its orphans are deleted. Their capacity is free again when
the management cluster has confirmed the deletion.

When the management cluster will not come back, --free frees the reserved capacity of a
cluster at once and orders nothing. The cluster's history records the operator and the reason.`,
		Example: `  atoll mc orphans end edge-7 ID --reason "the customer has left"
  atoll mc orphans end edge-7 CLUSTER-ID --free --reason "the hardware of edge-7 is lost"`,
		Args: cobra.ExactArgs(2),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why; the region records it")
	cmd.Flags().BoolVar(&free, "free", false,
		"free the capacity that is reserved for a cluster that no longer exists, and order nothing")
	cmd.MarkFlagRequired("reason")
	call := addCLMFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *clmConnection) error {
			if free {
				if err := l.ReleaseByForce(ctx, cluster.ID(args[1]), reason); err != nil {
					return err
				}
				session.Printf("the room of cluster %s on %s is free\n", args[1], args[0])
				return nil
			}
			if err := l.DeleteOrphan(ctx, cluster.ManagementCluster(args[0]), args[1], reason); err != nil {
				return err
			}
			session.Printf("deletion of %s on %s ordered; `atoll mc orphans %s` shows it until it is confirmed\n",
				args[1],
				args[0], args[0])
			return nil
		})
	}
	return cmd
}
