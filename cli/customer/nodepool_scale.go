package customer

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func poolScale(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "scale NAME REPLICAS", Short: "Set how many nodes a node pool has", Args: cobra.ExactArgs(2),
		Example:           "  atoll nodepool scale workers 5 --cluster demo --wait",
		ValidArgsFunction: completion(session, completePools),
	}
	cluster := addClusterFlag(session, cmd)
	f := terminal.AddWaitFlags(cmd, "ready")
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		replicas, err := strconv.ParseInt(args[1], 10, 32)
		if err != nil {
			return fmt.Errorf("%q is no number of nodes", args[1])
		}
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			p, err := findPool(ctx, api, client.ClusterID(*cluster), args[0])
			if err != nil {
				return err
			}
			verb := fmt.Sprintf("scaled from %d to %d", wantedReplicas(p.Spec), replicas)
			if wantedReplicas(p.Spec) == int(replicas) {
				verb = "has that already"
			}
			if p, err = api.UpdateNodePool(ctx, client.NodePoolID(p.ID),
				fmt.Appendf(nil, `{"spec":{"nodePool":{"replicas":%d}}}`, replicas), ""); err != nil {
				return err
			}
			return finishPoolChange(session, ctx, api, p, verb, f, out)
		})
	}
	return cmd
}
