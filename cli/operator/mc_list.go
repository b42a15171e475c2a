package operator

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
)

func mcList(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "list",
		Short: "List management clusters: their state, their clusters, the time of their agents' last events",
		Long: `Lists the management clusters. PLANES and MEMORY MIB show the amounts that the clusters
there reserve, and the capacity. WARM is the number of warm planes, which wait for new
clusters (atoll hosting --warm-planes). The number can be some minutes old; "-" means that
it is not known, such as half an hour after hosting has stopped.

A warm plane takes about 250 MiB of the machine's memory, beside the reserved amounts.
Hosting ends warm planes when the machine has little memory left or the capacity has no
room for them, so no placement fails because of them.`,
		Example: "  atoll mc list -o json", Args: cobra.NoArgs}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		api, err := session.Client()
		if err != nil {
			return err
		}
		clusters, err := api.ManagementClusters(cmd.Context())
		if err != nil {
			return err
		}
		if clusters == nil {
			clusters = []platform.ManagementCluster{}
		}
		return o.Print(session.Out, clusters, func(w io.Writer) { managementClustersTable(w, clusters) })
	}
	return cmd
}

// managementClustersTable prints management clusters as text, a line for each.
func managementClustersTable(w io.Writer, clusters []platform.ManagementCluster) {
	rows := [][]string{{"NAME", "STATE", "PLANES", "MEMORY MIB", "WARM", "LAST SEEN", "VERSIONS", "LABELS"}}
	for _, mc := range clusters {
		rows = append(rows, []string{mc.Name, terminal.DashIfEmpty(string(mc.State)), reservedText(mc, "planes"),
			reservedText(mc, "memory_mib"), warmText(mc), lastSeen(mc),
			terminal.DashIfEmpty(strings.Join(mc.Versions, ",")), terminal.LabelText(mc.Labels)})
	}
	terminal.Table(w, rows)
}

// reservedText returns the reserved amount of a resource, with its capacity when it is limited.
func reservedText(mc platform.ManagementCluster, resource string) string {
	if mc.State == "" {
		return "-"
	}
	if n, limited := mc.Capacity[resource]; limited {
		return fmt.Sprintf("%d/%d", mc.Reserved[resource], n)
	}
	return fmt.Sprint(mc.Reserved[resource])
}

// warmText returns how many warm planes a management cluster has; "-" when that is not known.
func warmText(mc platform.ManagementCluster) string {
	if mc.Hosting == nil {
		return "-"
	}
	return fmt.Sprint(mc.Hosting.WarmPlanes)
}

// lastSeen returns how long ago the agent of a management cluster was last seen.
func lastSeen(mc platform.ManagementCluster) string {
	if mc.LastSeenAt == nil {
		return "never"
	}
	return terminal.FormatAge(*mc.LastSeenAt, time.Now()) + " ago"
}
