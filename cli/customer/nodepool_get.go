package customer

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func poolList(c *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List node pools, of a cluster or of all", Args: cobra.NoArgs,
		Example: "  atoll nodepool list --cluster demo\n  atoll nodepool list -o wide",
	}
	cluster := addCluster(c, cmd)
	out := terminal.AddOutputFlag(cmd, "wide", "name")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return callRegion(c, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			q, clusters := client.NodePoolQuery{}, map[string]string{}
			if *cluster != "" {
				k, err := clusterNamed(ctx, api, *cluster)
				if err != nil {
					return err
				}
				q.Cluster, clusters[k.ID] = k.ID, k.Name
			} else {
				all, err := api.Clusters(ctx, client.ClusterQuery{})
				if err != nil {
					return err
				}
				for _, k := range all {
					clusters[k.ID] = k.Name
				}
			}
			pools, err := api.NodePools(ctx, q)
			if err != nil {
				return err
			}
			if out.Format == "table" || out.Format == "wide" {
				poolTable(c.Out, pools, clusters, out.Format == "wide", time.Now())
				return nil
			}
			names := make([]string, len(pools))
			for i, p := range pools {
				names[i] = p.ID // a name alone is not enough: clusters have pools of the same name
			}
			return out.PrintNamed(c.Out, pools, names...)
		})
	}
	return cmd
}

// poolTable shows node pools. clusters are the names of the clusters by id;
// nil: they are not shown.
func poolTable(w io.Writer, pools []platform.NodePool, clusters map[string]string, wide bool, now time.Time) {
	head := []string{"NODE POOL", "STATUS", "READY", "INSTANCE TYPE", "AGE", "MESSAGE"}
	if clusters != nil {
		head = append([]string{"CLUSTER"}, head...)
	}
	if wide {
		head = append(head, "ID", "LABELS", "SIMULATED")
	}
	rows := [][]string{head}
	for _, p := range pools {
		message := p.Status.Message
		if p.Status.Phase == "Ready" {
			message = ""
		}
		row := []string{p.Name, string(p.Status.Phase), readyText(p), instanceTypeOf(p.Spec), terminal.Ago(p.CreatedAt,
			now),
			message}
		if clusters != nil {
			row = append([]string{dash(clusters[p.ClusterID])}, row...)
		}
		if wide {
			row = append(row, p.ID, dash(terminal.LabelText(p.Spec.Labels)), fmt.Sprint(p.Status.Simulated))
		}
		rows = append(rows, row)
	}
	terminal.Table(w, rows)
}

// instanceTypeOf is what machines a node pool asks for.
func instanceTypeOf(s platform.NodePoolSpec) string {
	for _, in := range []*platform.NodePoolPlatform{passed(s).Platform, s.Platform} {
		if in != nil && in.AWS != nil && in.AWS.InstanceType != "" {
			return in.AWS.InstanceType
		}
	}
	return "-"
}

// passed are a node pool's fields of HyperShift.
func passed(s platform.NodePoolSpec) platform.HyperShiftNodePool {
	if s.NodePool == nil {
		return platform.HyperShiftNodePool{}
	}
	return *s.NodePool
}

func poolGet(c *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "get NAME", Short: "Show a node pool and its conditions", Args: cobra.ExactArgs(1),
		Example:           "  atoll nodepool get workers --cluster demo",
		ValidArgsFunction: completion(c, completePools),
	}
	cluster := addCluster(c, cmd)
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callRegion(c, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			p, err := poolNamed(ctx, api, *cluster, args[0])
			if err != nil {
				return err
			}
			if out.Format != "table" {
				return out.PrintNamed(c.Out, p.NodePool, p.ID)
			}
			simulated := ""
			if p.Status.Simulated {
				simulated = ", nodes are simulated"
			}
			c.Printf("%s (%s) of cluster %s, generation %d%s\n", p.Name, p.ID, p.ClusterID, p.Generation, simulated)
			poolTable(c.Out, []platform.NodePool{p.NodePool}, nil, false, time.Now())
			c.Printf("\n")
			conditionTable(c.Out, p.Status.Conditions, time.Now())
			return nil
		})
	}
	return cmd
}
