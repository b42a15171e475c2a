package operator

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
)

func mcGet(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "get NAME", Short: "Show a management cluster: its capacity and its clusters",
		Example: "  atoll mc get edge-7 -o json", Args: cobra.ExactArgs(1)}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		api, err := session.Client()
		if err != nil {
			return err
		}
		mc, err := api.ManagementCluster(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return o.Print(session.Out, mc, func(w io.Writer) { managementClusterTable(w, mc) })
	}
	return cmd
}

// managementClusterTable prints one management cluster as text.
func managementClusterTable(w io.Writer, mc platform.ManagementCluster) {
	rows := [][]string{
		{"Name", mc.Name}, {"ID", mc.ID}, {"State", terminal.DashIfEmpty(string(mc.State))}, {"Last seen", lastSeen(mc)},
		{"Registered", mc.CreatedAt.Local().Format(time.DateTime)},
		{"Versions", terminal.DashIfEmpty(strings.Join(mc.Versions, ", "))},
		{"Labels", terminal.DashIfEmpty(terminal.LabelText(mc.Labels))},
		{"Placements", fmt.Sprint(mc.Placements)},
	}
	if mc.Hosting != nil {
		rows = append(rows, []string{"Warm planes", warmText(mc)})
	}
	if mc.UnknownWorks > 0 {
		rows = append(rows, []string{"Unknown works", fmt.Sprint(mc.UnknownWorks)})
	}
	names := slices.Concat(slices.Collect(maps.Keys(mc.Capacity)), slices.Collect(maps.Keys(mc.Reserved)))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		rows = append(rows, []string{"Reserved " + name, reservedText(mc, name)})
	}
	if other := hostingCapacity(mc); other != "" {
		rows = append(rows, []string{"Hosting --capacity",
			other + " bounds warm planes only; see: atoll mc update --help"})
	}
	terminal.Table(w, rows)
}

// hostingCapacity returns the resources, such as planes=30, of which hosting was told another amount than the capacity
// of the management cluster; "" for none.
func hostingCapacity(mc platform.ManagementCluster) string {
	if mc.Hosting == nil {
		return ""
	}
	var different []string
	for _, name := range slices.Sorted(maps.Keys(mc.Hosting.Capacity)) {
		n := mc.Hosting.Capacity[name]
		if limit, isLimited := mc.Capacity[name]; !isLimited || n != limit {
			different = append(different, fmt.Sprintf("%s=%d", name, n))
		}
	}
	return strings.Join(different, ",")
}
