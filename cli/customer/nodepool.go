package customer

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

// NodePool returns the command `atoll nodepool`.
func NodePool(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "nodepool", Aliases: []string{"nodepools"}, Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Node pools of clusters: create, list, scale, delete, join-token",
		Long: `Node pools of the account's clusters. The provider of a node pool makes its nodes:
  simulated  pods are scheduled to the nodes and reported as running; no container runs
  local      real nodes on the region's machine, which run pods
  external   machines of the customer, which join with a token
The region chooses the provider when a node pool names none. NAME is a node pool's name,
with --cluster, or its id.`,
		Example: `  atoll nodepool create workers --cluster demo --replicas 3 --instance-type m6a.2xlarge
  atoll nodepool scale workers 5 --cluster demo --wait`,
	}
	cmd.AddCommand(poolCreate(session), poolList(session), poolGet(session), poolScale(session), poolDelete(session),
		poolJoinToken(session))
	return cmd
}

// addClusterFlag gives cmd the flag --cluster.
func addClusterFlag(session *terminal.Session, cmd *cobra.Command) *string {
	name := cmd.Flags().StringP("cluster", "c", "", "name or id of the cluster")
	_ = cmd.RegisterFlagCompletionFunc("cluster", func(cmd *cobra.Command, _ []string, word string) ([]cobra.Completion,
		cobra.ShellCompDirective) {
		return completeClusters(session, cmd, nil, word)
	})
	return name
}

// completePools completes the first argument with the names of node pools: those of the cluster that
// --cluster names, or of all clusters.
func completePools(session *terminal.Session, cmd *cobra.Command, args []string, word string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	var words []cobra.Completion
	err := callRegion(session, ctx, func(ctx context.Context, api *client.Client) error {
		q := client.NodePoolQuery{}
		if name := cmd.Flag("cluster").Value.String(); name != "" {
			cluster, err := findCluster(ctx, api, name)
			if err != nil {
				return err
			}
			q.Cluster = client.ClusterID(cluster.ID)
		}
		pools, err := api.NodePools(ctx, q)
		for _, p := range pools {
			if strings.HasPrefix(p.Name, word) {
				words = append(words, cobra.CompletionWithDesc(p.Name, readyText(p)+" ready"))
			}
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// findPool finds a node pool by its id, or by its name in a cluster. Without a cluster the name
// must be unique among the account's node pools. It prefers a node pool that is not being deleted.
func findPool(ctx context.Context, api *client.Client, cluster client.ClusterID, name string) (client.NodePool, error) {
	if uuid.Validate(name) == nil {
		return api.NodePool(ctx, client.NodePoolID(name))
	}
	q := client.NodePoolQuery{Name: name}
	if cluster != "" {
		owner, err := findCluster(ctx, api, string(cluster))
		if err != nil {
			return client.NodePool{}, err
		}
		q.Cluster = client.ClusterID(owner.ID)
	}
	found, err := api.NodePools(ctx, q)
	switch {
	case err != nil:
		return client.NodePool{}, err
	case len(found) == 0:
		return client.NodePool{}, fmt.Errorf("there is no node pool %q; `atoll nodepool list` shows what there is",
			name)
	case len(found) > 1 && cluster == "":
		return client.NodePool{}, fmt.Errorf("%d clusters have a node pool %q; name one with --cluster", len(found),
			name)
	}
	for _, p := range found {
		if p.DeletedAt == nil {
			return api.NodePool(ctx, client.NodePoolID(p.ID))
		}
	}
	return api.NodePool(ctx, client.NodePoolID(found[0].ID))
}

// wantedReplicas returns the number of nodes that a spec requests.
func wantedReplicas(s platform.NodePoolSpec) int {
	switch {
	case s.NodePool != nil && s.NodePool.Replicas != nil:
		return int(*s.NodePool.Replicas)
	case s.Replicas != nil:
		return int(*s.Replicas)
	}
	return 0
}

// readyText returns READY/REQUESTED nodes.
func readyText(p platform.NodePool) string {
	return fmt.Sprintf("%d/%d", p.Status.Ready, wantedReplicas(p.Spec))
}
