package customer

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	region "atoll.dev/cluster"
	"atoll.dev/internal/instancetype"
)

func poolCreate(session *terminal.Session) *cobra.Command {
	s := poolSettings{}
	var replicas int32
	var repair bool
	var taints []string
	cmd := &cobra.Command{
		Use: "create NAME --cluster CLUSTER", Short: "Create a node pool", Args: cobra.ExactArgs(1),
		Example: `  atoll nodepool create workers --cluster demo --replicas 3 --instance-type m6a.2xlarge --wait
  atoll nodepool create gpu --cluster demo --replicas 1 --label tier=gpu --taint gpu=true:NoSchedule
  atoll nodepool create tests --cluster demo --replicas 20 --provider simulated`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cluster := addClusterFlag(session, cmd)
	cmd.MarkFlagRequired("cluster")
	cmd.Flags().Int32Var(&replicas, "replicas", 2, "nodes")
	cmd.Flags().StringVar(&s.provider, "provider", "",
		"what makes the nodes, of what the region offers: simulated, local (real, on the region's machine) or external "+
			"(the customer's machines); it cannot be changed (default: the region's)")
	_ = cmd.RegisterFlagCompletionFunc("provider", cobra.FixedCompletions(
		[]string{string(region.Simulated), string(region.Local), string(region.External)},
		cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().StringVar(&s.instanceType, "instance-type", "",
		"type of the nodes' machines, such as m6a.xlarge; simulated nodes get its size (default: the region's)")
	_ = cmd.RegisterFlagCompletionFunc("instance-type", cobra.FixedCompletions(instancetype.Names(),
		cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().StringToStringVar(&s.labels, "label", nil, "label of the nodes, k=v; repeatable")
	cmd.Flags().StringArrayVar(&taints, "taint", nil, "taint of the nodes, k=v:EFFECT; repeatable")
	cmd.Flags().BoolVar(&repair, "auto-repair", true, "replace lost nodes")
	cmd.Flags().StringVar(&s.displayName, "display-name", "", "a name for people")
	f := terminal.AddWaitFlags(cmd, "ready")
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s.replicas = &replicas
		if cmd.Flags().Changed("auto-repair") {
			s.autoRepair = &repair
		}
		for _, t := range taints {
			if err := s.addTaint(t); err != nil {
				return fmt.Errorf("--taint: %w", err)
			}
		}
		return callCluster(session, cmd.Context(), *cluster, func(ctx context.Context, api *client.Client,
			owner client.Cluster) error {
			request := platform.NodePoolRequest{ClusterID: owner.ID, Name: args[0]}
			if err := decodeStrict(s.spec(), &request.Spec); err != nil {
				return err
			}
			p, err := api.CreateNodePool(ctx, request)
			if err != nil {
				return err
			}
			return finishPoolChange(session, ctx, api, p, "accepted", f, out)
		})
	}
	return cmd
}
