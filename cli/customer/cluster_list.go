package customer

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

// clusterPhases are the phases that `cluster list --status` takes.
var clusterPhases = []string{"WaitingForPlacement", "Provisioning", "Ready", "Deleting", "Failed"}

func clusterList(session *terminal.Session) *cobra.Command {
	var phase string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the account's clusters", Args: cobra.NoArgs,
		Example: `  atoll cluster list -o wide
  atoll cluster list --status Ready -o name`,
	}
	cmd.Flags().StringVar(&phase, "status", "", "only clusters in this phase: "+strings.Join(clusterPhases, ", "))
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(clusterPhases,
		cobra.ShellCompDirectiveNoFileComp))
	out := terminal.AddOutputFlag(cmd, "wide", "name")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			all, err := api.Clusters(ctx, client.ClusterQuery{Phase: platform.ClusterPhase(phase)})
			if err != nil {
				return err
			}
			names := make([]string, len(all))
			for i, cluster := range all {
				names[i] = cluster.Name
			}
			switch {
			case out.Format == "table" || out.Format == "wide":
				clusterTable(session.Out, all, out.Width(), time.Now())
				if len(all) == 0 && phase == "" {
					fmt.Fprintln(
						session.Err, "no clusters yet; make one: atoll cluster create NAME --node-pool "+
							"name=workers,replicas=2 --wait")
				}
				return nil
			default:
				return out.PrintNamed(session.Out, all, names...)
			}
		})
	}
	return cmd
}

// clusterTable prints clusters as a table.
func clusterTable(w io.Writer, all []platform.Cluster, width terminal.Width, now time.Time) {
	head := []string{"NAME", "STATUS", "VERSION", "AGE", "MESSAGE"}
	if width == terminal.Wide {
		head = []string{"NAME", "ID", "STATUS", "VERSION", "MANAGEMENT CLUSTER", "API", "CREATED BY", "TAGS", "AGE",
			"MESSAGE"}
	}
	rows := [][]string{head}
	for _, cluster := range all {
		message := messageOf(cluster)
		version, age := terminal.DashIfEmpty(cluster.Status.Version), terminal.FormatAge(cluster.CreatedAt, now)
		if width == terminal.Wide {
			rows = append(rows, []string{cluster.Name, cluster.ID, phaseOf(cluster), version,
				managementClusterOf(cluster), apiURL(cluster), cluster.CreatedBy,
				terminal.DashIfEmpty(terminal.LabelText(cluster.Spec.Tags)), age, message})
		} else {
			rows = append(rows, []string{cluster.Name, phaseOf(cluster), version, age, message})
		}
	}
	terminal.Table(w, rows)
}
