package customer

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func clusterHibernate(session *terminal.Session) *cobra.Command {
	return powerCommand(session, powerAsleep, &cobra.Command{
		Use: "hibernate NAME", Short: "Stop a cluster's control plane whenever no client is connected",
		Long: `Stops a cluster's control plane and keeps its data. A connection wakes it, within
seconds, and it sleeps again after ten minutes without a connection.`,
		Example: "  atoll cluster hibernate demo --wait",
	})
}

func clusterWake(session *terminal.Session) *cobra.Command {
	return powerCommand(session, powerAwake, &cobra.Command{
		Use: "wake NAME", Short: "Keep a cluster's control plane running, also without connections",
		Long: `Keeps a cluster's control plane running. Without this, a hibernated control plane runs
from a connection until ten minutes after the last.`,
		Example: "  atoll cluster wake demo --wait",
	})
}

// power is a state of status.power that a customer can order.
type power string

const (
	powerAwake  power = "Awake"
	powerAsleep power = "Asleep"
)

// powerCommand completes a command that orders a cluster's power state.
func powerCommand(session *terminal.Session, order power, cmd *cobra.Command) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = cobra.ExactArgs(1), completion(session, completeClusters)
	goal := clusterGoal{name: strings.ToLower(string(order)), reached: func(cluster platform.Cluster) bool {
		return cluster.Status.Power == string(order) && cluster.Status.Phase == platform.ClusterPhaseReady
	}}
	f := terminal.AddWaitFlags(cmd, goal.name)
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			spec := map[string]any{"hibernated": order == powerAsleep}
			return changeCluster(session, ctx, api, args[0], spec, f, out, goal)
		})
	}
	return cmd
}
