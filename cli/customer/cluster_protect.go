package customer

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func clusterProtect(session *terminal.Session) *cobra.Command {
	return protectionCommand(session, protectionOn, &cobra.Command{
		Use: "protect NAME", Short: "Make the region refuse a cluster's deletion until unprotect",
		Example: "  atoll cluster protect demo",
	})
}

func clusterUnprotect(session *terminal.Session) *cobra.Command {
	return protectionCommand(session, protectionOff, &cobra.Command{
		Use: "unprotect NAME", Short: "Allow a cluster's deletion again, after protect",
		Example: "  atoll cluster unprotect demo && atoll cluster delete demo",
	})
}

// protection is the value of a cluster's deleteProtection.
type protection bool

const (
	protectionOn  protection = true
	protectionOff protection = false
)

// protectionCommand completes a command that sets a cluster's deletion protection.
func protectionCommand(session *terminal.Session, order protection, cmd *cobra.Command) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = cobra.ExactArgs(1), completion(session, completeClusters)
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			spec := map[string]any{"deleteProtection": order}
			return changeCluster(session, ctx, api, args[0], spec, &terminal.WaitFlags{}, out, clusterGoal{})
		})
	}
	return cmd
}
