package customer

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/release"
)

func clusterUpgrade(session *terminal.Session) *cobra.Command {
	var version string
	cmd := &cobra.Command{
		Use: "upgrade NAME --release V", Short: "Upgrade a cluster's control plane", Args: cobra.ExactArgs(1),
		Long: `Upgrades a cluster's control plane to another version of Kubernetes. Its API does not
answer during the restart, for a second or two. The region refuses a version that the
management cluster does not have; a condition of the cluster shows that. When the control
plane does not become ready with the new version, it goes back to the old one by itself;
"atoll cluster get" shows why. For a time after the upgrade (24 h unless the region has
another; "atoll cluster get" shows the end) "atoll cluster rollback" returns to the old version.`,
		Example: `  atoll cluster upgrade demo --release 1.36.3 --wait
  atoll cluster rollback demo --wait`,
		ValidArgsFunction: completion(session, completeClusters),
	}
	cmd.Flags().StringVar(&version, "release", "", "Kubernetes version, such as 1.36.3")
	cmd.MarkFlagRequired("release")
	f := terminal.AddWaitFlags(cmd, "upgraded")
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			spec := map[string]any{"hostedCluster": map[string]any{"release": map[string]any{
				"image": release.Image(version)}}}
			return changeCluster(session, ctx, api, args[0], spec, f, out, versionGoal("upgraded to ", version))
		})
	}
	return cmd
}

// versionGoal is a cluster that is ready with a version of Kubernetes. A cluster whose control plane has gone to
// another version fails.
func versionGoal(verb, version string) clusterGoal {
	return clusterGoal{
		name: verb + version,
		reached: func(cluster platform.Cluster) bool {
			return cluster.Status.Version == version && cluster.Status.Phase == platform.ClusterPhaseReady
		},
		failed: func(cluster platform.Cluster) string {
			u := cluster.Status.Upgrade
			isLeft := u != nil && (u.Phase == platform.ClusterUpgradePhaseFailed && u.To == version ||
				u.Phase == platform.ClusterUpgradePhaseRollbackFailed && u.From == version)
			if !isLeft || cluster.Status.Phase != platform.ClusterPhaseFailed {
				return ""
			}
			return terminal.OneLine(u.Message)
		},
	}
}
