package customer

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func poolDelete(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "Delete a node pool; its nodes are drained first", Args: cobra.ExactArgs(1),
		Example:           "  atoll nodepool delete workers --cluster demo --wait",
		ValidArgsFunction: completion(session, completePools),
	}
	cluster := addClusterFlag(session, cmd)
	f := terminal.AddWaitFlags(cmd, "gone")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			p, err := findPool(ctx, api, client.ClusterID(*cluster), args[0])
			if err != nil {
				return err
			}
			if err := api.DeleteNodePool(ctx, client.NodePoolID(p.ID), ""); err != nil {
				return err
			}
			session.Printf("deletion of node pool %s (%s) ordered\n", p.Name, p.ID)
			if !f.Wait {
				return nil
			}
			return awaitPool(session, ctx, api, p.NodePool, poolGone, f.Timeout, session.Out)
		})
	}
	return cmd
}
