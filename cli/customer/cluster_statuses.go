package customer

import (
	"context"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func clusterStatuses(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "statuses NAME",
		Short: "Show what each of the region's controllers reports of a cluster",
		Args:  cobra.ExactArgs(1),
		Example: "  atoll cluster statuses demo\n  atoll cluster statuses demo -o json | jq " +
			"'.controller_statuses[].data'",
		ValidArgsFunction: completion(session, completeClusters),
	}
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCluster(session, cmd.Context(), args[0], func(ctx context.Context, api *client.Client,
			cluster client.Cluster) error {
			s, err := api.ClusterStatuses(ctx, client.ClusterID(cluster.ID))
			if err != nil {
				return err
			}
			return out.Print(session.Out, s, func(w io.Writer) { statusesTable(w, s, time.Now()) })
		})
	}
	return cmd
}

// statusesTable prints one row for each condition that a controller reports.
func statusesTable(w io.Writer, s platform.ClusterStatuses, now time.Time) {
	rows := [][]string{{"CONTROLLER", "GENERATION", "REPORTED", "CONDITION", "STATUS", "REASON", "MESSAGE"}}
	for _, cs := range s.ControllerStatuses {
		for i, d := range cs.Conditions {
			row := []string{cs.ControllerName, strconv.FormatInt(cs.ObservedGeneration, 10),
				terminal.FormatAge(cs.LastUpdated, now) + " ago"}
			if i > 0 {
				row = []string{"", "", ""}
			}
			rows = append(rows, append(row, d.Type, string(d.Status), d.Reason, d.Message))
		}
	}
	terminal.Table(w, rows)
}
