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
		Short:   "List management clusters: their state, their clusters, the time of their agents' last events",
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
		return o.Print(session.Out, clusters, func(w io.Writer) {
			rows := [][]string{{"NAME", "STATE", "PLANES", "MEMORY MIB", "LAST SEEN", "VERSIONS", "LABELS"}}
			for _, mc := range clusters {
				rows = append(rows, []string{mc.Name, terminal.DashIfEmpty(string(mc.State)), reservedText(mc, "planes"),
					reservedText(mc, "memory_mib"), lastSeen(mc),
					terminal.DashIfEmpty(strings.Join(mc.Versions, ",")), terminal.LabelText(mc.Labels)})
			}
			terminal.Table(w, rows)
		})
	}
	return cmd
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

// lastSeen returns how long ago the agent of a management cluster was last seen.
func lastSeen(mc platform.ManagementCluster) string {
	if mc.LastSeenAt == nil {
		return "never"
	}
	return terminal.FormatAge(*mc.LastSeenAt, time.Now()) + " ago"
}
