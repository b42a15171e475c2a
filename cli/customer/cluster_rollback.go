package customer

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func clusterRollback(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "rollback NAME", Short: "Return a cluster to the version before its last upgrade", Args: cobra.ExactArgs(1),
		Long: `Returns a cluster's control plane to the version before its last upgrade, with all of its
data. "atoll cluster get" shows until when that is possible. Its API does not answer during
the restart, for a second or two. After an upgrade that failed, the control plane runs the
old version already; rollback gives the spec that version again.`,
		Example: `  atoll cluster rollback demo --wait
  atoll cluster rollback demo -o json`,
		ValidArgsFunction: completion(session, completeClusters),
	}
	f := terminal.AddWaitFlags(cmd, "returned")
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCluster(session, cmd.Context(), args[0], func(ctx context.Context, api *client.Client,
			cluster client.Cluster) error {
			before := cluster.Generation
			cluster, err := api.Rollback(ctx, client.ClusterID(cluster.ID))
			if err != nil {
				return err
			}
			version, progress := releaseOf(cluster.Spec), out.Progress(session)
			outcome := "returns to"
			if cluster.Generation == before {
				outcome = "has that already:"
			}
			fmt.Fprintf(progress, "cluster %s %s %s: generation %d\n", cluster.Name, outcome, version, cluster.Generation)
			if f.Wait {
				goal := versionGoal("returned to ", version)
				if err := awaitCluster(session, ctx, api, cluster.Cluster, goal, f.Timeout, progress); err != nil {
					return err
				}
				if cluster, err = api.Cluster(ctx, client.ClusterID(cluster.ID)); err != nil {
					return err
				}
			}
			return out.PrintNamed(session.Out, cluster.Cluster, cluster.Name)
		})
	}
	return cmd
}
