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

func clusterBackups(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "backups NAME", Short: "Show the times to which a cluster can be restored", Args: cobra.ExactArgs(1),
		Long: `Lists the backups of a cluster's control plane, the oldest first, and its last restore.
Most backups restore to every second up to the next one. One that a restore could not
read is marked as damaged: its times restore from another one, if one has them.`,
		Example:           "  atoll cluster backups demo\n  atoll cluster backups demo -o json",
		ValidArgsFunction: completion(session, completeClusters),
	}
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCluster(session, cmd.Context(), args[0], func(ctx context.Context, api *client.Client,
			cluster client.Cluster) error {
			b, err := api.Backups(ctx, client.ClusterID(cluster.ID))
			if err != nil {
				return err
			}
			return out.Print(session.Out, b, func(w io.Writer) { backupTable(w, cluster.Name, b) })
		})
	}
	return cmd
}

// backupTable prints the backups of a cluster as text.
func backupTable(w io.Writer, name string, b platform.ClusterBackups) {
	switch {
	case b.From != nil && b.To != nil:
		fmt.Fprintf(w, "cluster %s can be restored from %s to %s (%d backups)\n\n", name, b.From.Format(time.RFC3339),
			b.To.Format(time.RFC3339), b.Count)
	case len(b.Items) > 0:
		fmt.Fprintf(w, "cluster %s cannot be restored: a restore could read none of its backups (%d)\n\n", name, b.Count)
	default:
		fmt.Fprintf(w, "cluster %s has no backup: its management cluster makes none, or the first is not complete yet\n",
			name)
		return
	}
	rows := [][]string{{"TAKEN", "RESTORES"}}
	for _, item := range b.Items {
		restores := "this second"
		if item.EverySecond {
			restores = "every second from then on"
		}
		if item.Damaged {
			restores += " (damaged: a restore could not read it)"
		}
		rows = append(rows, []string{item.Taken.Format(time.RFC3339), restores})
	}
	terminal.Table(w, rows)
	if b.Restore != nil {
		fmt.Fprintf(w, "\nlast restore: %s\n", restoreText(*b.Restore))
	}
}

// restoreText returns the state of a restore in one line.
func restoreText(r platform.Restore) string {
	text := fmt.Sprintf("to %s: %s", r.At.Format(time.RFC3339), r.Phase)
	if r.DryRun {
		text = "dry run " + text
	}
	if r.Message != "" {
		text += ": " + terminal.OneLine(r.Message)
	}
	return text
}
