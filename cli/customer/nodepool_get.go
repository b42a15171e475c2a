package customer

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func poolGet(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "get NAME", Short: "Show a node pool and its conditions", Args: cobra.ExactArgs(1),
		Example:           "  atoll nodepool get workers --cluster demo",
		ValidArgsFunction: completion(session, completePools),
	}
	cluster := addClusterFlag(session, cmd)
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			p, err := findPool(ctx, api, client.ClusterID(*cluster), args[0])
			if err != nil {
				return err
			}
			if out.Format != "table" {
				return out.PrintNamed(session.Out, p.NodePool, p.ID)
			}
			simulated := ", nodes are real (provider " + p.Spec.Provider + ")"
			if p.Status.Simulated {
				simulated = ", nodes are simulated"
			}
			session.Printf("%s (%s) of cluster %s, generation %d%s\n", p.Name, p.ID, p.ClusterID, p.Generation,
				simulated)
			poolTable(session.Out, []platform.NodePool{p.NodePool}, nil, terminal.Narrow, time.Now())
			session.Printf("\n")
			conditionTable(session.Out, p.Status.Conditions, time.Now())
			return nil
		})
	}
	return cmd
}
