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

func poolList(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List node pools, of a cluster or of all", Args: cobra.NoArgs,
		Example: "  atoll nodepool list --cluster demo\n  atoll nodepool list -o wide",
	}
	cluster := addClusterFlag(session, cmd)
	out := terminal.AddOutputFlag(cmd, "wide", "name")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			q, clusters := client.NodePoolQuery{}, map[string]string{}
			if *cluster != "" {
				owner, err := findCluster(ctx, api, *cluster)
				if err != nil {
					return err
				}
				q.Cluster, clusters[owner.ID] = client.ClusterID(owner.ID), owner.Name
			} else {
				all, err := api.Clusters(ctx, client.ClusterQuery{})
				if err != nil {
					return err
				}
				for _, owner := range all {
					clusters[owner.ID] = owner.Name
				}
			}
			pools, err := api.NodePools(ctx, q)
			if err != nil {
				return err
			}
			if out.Format == "table" || out.Format == "wide" {
				poolTable(session.Out, pools, clusters, out.Width(), time.Now())
				return nil
			}
			names := make([]string, len(pools))
			for i, p := range pools {
				names[i] = p.ID // a name alone is not enough: clusters have pools of the same name
			}
			return out.PrintNamed(session.Out, pools, names...)
		})
	}
	return cmd
}

// poolTable prints node pools as a table. clusters has the names of clusters by id; nil omits the
// column.
func poolTable(w io.Writer, pools []platform.NodePool, clusters map[string]string, width terminal.Width,
	now time.Time) {
	head := []string{"NODE POOL", "STATUS", "READY", "INSTANCE TYPE", "AGE", "MESSAGE"}
	if clusters != nil {
		head = append([]string{"CLUSTER"}, head...)
	}
	if width == terminal.Wide {
		head = append(head, "ID", "LABELS", "SIMULATED")
	}
	rows := [][]string{head}
	for _, p := range pools {
		message := p.Status.Message
		if p.Status.Phase == "Ready" {
			message = ""
		}
		row := []string{p.Name, string(p.Status.Phase), readyText(p), instanceTypeOf(p.Spec),
			terminal.FormatAge(p.CreatedAt, now), message}
		if clusters != nil {
			row = append([]string{terminal.DashIfEmpty(clusters[p.ClusterID])}, row...)
		}
		if width == terminal.Wide {
			row = append(row, p.ID, terminal.DashIfEmpty(terminal.LabelText(p.Spec.Labels)), fmt.Sprint(p.Status.Simulated))
		}
		rows = append(rows, row)
	}
	terminal.Table(w, rows)
}

// instanceTypeOf returns the instance type that a node pool requests, or "-".
func instanceTypeOf(s platform.NodePoolSpec) string {
	for _, in := range []*platform.NodePoolPlatform{hyperShiftFields(s).Platform, s.Platform} {
		if in != nil && in.AWS != nil && in.AWS.InstanceType != "" {
			return in.AWS.InstanceType
		}
	}
	return "-"
}

// hyperShiftFields returns a node pool's fields of HyperShift, empty when there are none.
func hyperShiftFields(s platform.NodePoolSpec) platform.HyperShiftNodePool {
	if s.NodePool == nil {
		return platform.HyperShiftNodePool{}
	}
	return *s.NodePool
}
