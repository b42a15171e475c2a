package operator

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/local"
)

// Status returns the command `atoll status`.
func Status(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show the region's processes and endpoints",
		Example: "  atoll status\n  atoll status -o json | jq .ready",
		Args:    cobra.NoArgs,
	}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		home, err := session.Home()
		if err != nil {
			return err
		}
		status, err := home.Status(cmd.Context())
		if err != nil {
			return err
		}
		return o.Print(session.Out, status, func(w io.Writer) { printStatus(w, status) })
	}
	return cmd
}

// printStatus prints the processes of a region, its control planes, and its ports that identify no caller.
func printStatus(w io.Writer, s local.Status) {
	state := "not ready"
	if s.Ready {
		state = "ready"
	}
	fmt.Fprintf(w, "region %s: %s (home %s)\n\n", s.Region, state, s.Home)
	rows := [][]string{{"PROCESS", "PID", "STATE", "RESTARTS", "MEMORY", "ADDRESS"}}
	for _, p := range s.Processes {
		pid := "-"
		if p.PID != 0 {
			pid = strconv.Itoa(p.PID)
		}
		address := p.Address
		if p.Reason != "" {
			address += "  (" + p.Reason + ")"
		}
		rows = append(rows, []string{p.Name, pid, p.State, strconv.Itoa(p.Restarts), terminal.Megabytes(p.RSSBytes),
			address})
	}
	terminal.Table(w, rows)
	printPlanes(w, s.Planes)
	for _, name := range slices.Sorted(maps.Keys(s.Insecure)) {
		fmt.Fprintf(w, "\ninsecure: %s at %s identifies no caller", name, s.Insecure[name])
	}
	if len(s.Insecure) > 0 {
		fmt.Fprintln(w)
	}
}

// printPlanes prints the customers' planes that run, with the sum of their memory.
func printPlanes(w io.Writer, planes []local.PlaneStatus) {
	if len(planes) == 0 {
		return
	}
	rows := [][]string{{"PLANE", "PID", "MEMORY", "SHARE", "MANAGEMENT CLUSTER", "NAMESPACE", "WALLS"}}
	var resident, share int64
	for _, p := range planes {
		rows = append(rows, []string{p.HostedCluster, strconv.Itoa(p.PID), terminal.Megabytes(p.RSSBytes),
			terminal.Megabytes(p.PSSBytes),
			string(p.ManagementCluster), p.Namespace, cmp.Or(strings.Join(p.Walls, ","), "none")})
		resident, share = resident+p.RSSBytes, share+p.PSSBytes
	}
	if len(planes) > 1 {
		rows = append(rows, []string{"together", "", terminal.Megabytes(resident), terminal.Megabytes(share), "", "", ""})
	}
	fmt.Fprintln(w)
	terminal.Table(w, rows)
}
