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
		Long: `Upgrades a cluster's control plane to another version of Kubernetes. Its API is away for
the second or two of the restart. A version that its management cluster does not have is
refused, and shown as its condition.`,
		Example:           "  atoll cluster upgrade demo --release 1.36.3 --wait",
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
			return changeCluster(session, ctx, api, args[0], spec, f, out, clusterGoal{
				"upgraded to " + version, func(cluster platform.Cluster) bool {
					return cluster.Status.Version == version && cluster.Status.Phase == platform.ClusterPhaseReady
				},
			})
		})
	}
	return cmd
}
