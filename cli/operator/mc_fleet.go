package operator

import (
	"context"
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

// Management clusters as they are registered, and what they take.

func mcList(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "list",
		Short: "List management clusters: their state, what is placed there, when their agents were last heard of",
		Args:  cobra.NoArgs}
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
				rows = append(rows, []string{mc.Name, terminal.Dash(string(mc.State)), reservedText(mc, "planes"),
					reservedText(mc, "memory_mib"), lastSeen(mc),
					terminal.Dash(strings.Join(mc.Versions, ",")), terminal.LabelText(mc.Labels)})
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
	return terminal.Ago(*mc.LastSeenAt, time.Now()) + " ago"
}

func mcGet(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "get NAME", Short: "Show a management cluster: what it takes and what is placed there",
		Args: cobra.ExactArgs(1)}
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
		return o.Print(session.Out, mc, func(w io.Writer) { managementClusterTable(session, w, mc) })
	}
	return cmd
}

// managementClusterTable prints one management cluster as text.
func managementClusterTable(session *terminal.Session, w io.Writer, mc platform.ManagementCluster) {
	rows := [][]string{
		{"Name", mc.Name}, {"ID", mc.ID}, {"State", terminal.Dash(string(mc.State))}, {"Last seen", lastSeen(mc)},
		{"Registered", mc.CreatedAt.Local().Format(time.DateTime)},
		{"Versions", terminal.Dash(strings.Join(mc.Versions, ", "))}, {"Labels", terminal.Dash(terminal.LabelText(mc.Labels))},
		{"Placements", fmt.Sprint(mc.Placements)},
	}
	if mc.UnknownWorks > 0 {
		rows = append(rows, []string{"Unknown works", fmt.Sprint(mc.UnknownWorks)})
	}
	names := slices.Concat(slices.Collect(maps.Keys(mc.Capacity)), slices.Collect(maps.Keys(mc.Reserved)))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		rows = append(rows, []string{"Reserved " + name, reservedText(mc, name)})
	}
	terminal.Table(w, rows)
}

// capacityFlags are the flags with the capacity and the versions of a management cluster.
type capacityFlags struct {
	capacity map[string]int64
	versions []string
}

// addCapacityFlags gives cmd the flags of capacityFlags.
func addCapacityFlags(cmd *cobra.Command) *capacityFlags {
	o := &capacityFlags{}
	cmd.Flags().StringToInt64Var(&o.capacity, "capacity", nil,
		"how much there is of a resource: planes=40,memory_mib=16000; what is not named is not limited. A control "+
			"plane takes 1 of planes and 350 of memory_mib")
	cmd.Flags().StringSliceVar(&o.versions, "version", nil,
		"a Kubernetes version that it can run, as 1.36.3; repeatable (default: any)")
	return o
}

func mcRegister(session *terminal.Session) *cobra.Command {
	labels := map[string]string{}
	cmd := &cobra.Command{
		Use:   "register NAME",
		Short: "Make a management cluster known to the region",
		Long: `Registers a management cluster under a name that never changes: the name is its
certificate's common name and its place in the bus's topics. Clusters are placed on
it as soon as its agent is heard.`,
		Example: "  atoll mc register edge-7 --label zone=north --capacity planes=40 --version 1.36.3",
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().StringToStringVar(&labels, "label", nil, "label, k=v; repeatable")
	limits := addCapacityFlags(cmd)
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		api, err := session.Client()
		if err != nil {
			return err
		}
		mc, err := api.RegisterManagementCluster(cmd.Context(), platform.ManagementClusterRequest{Name: args[0],
			Labels: labels, Capacity: limits.capacity, Versions: limits.versions})
		if err != nil {
			return err
		}
		return o.Print(session.Out, mc, func(w io.Writer) { fmt.Fprintf(w, "%s registered (id %s)\n", mc.Name, mc.ID) })
	}
	return cmd
}

func mcUpdate(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "update NAME",
		Short: "Change what a management cluster takes",
		Long: `Changes a management cluster's capacity or versions; what is given takes the place of all
that was said before. Clusters that wait for room are tried again at once; what is
placed there stays, also when it is more than the new capacity. The capacity of a
local one is decided by "atoll up", each time its agent starts.`,
		Example: "  atoll mc update edge-7 --capacity planes=60",
		Args:    cobra.ExactArgs(1),
	}
	limits := addCapacityFlags(cmd)
	cmd.MarkFlagsOneRequired("capacity", "version")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return updateMC(session, cmd.Context(), args[0], platform.ManagementClusterUpdate{Capacity: limits.capacity,
			Versions: limits.versions}, o)
	}
	return cmd
}

func mcState(session *terminal.Session, verb string, state platform.ManagementClusterUpdateState) *cobra.Command {
	short := map[string]string{
		"cordon":   "Place no more clusters on a management cluster; those that are there stay",
		"uncordon": "Place clusters on a management cluster again",
		"drain":    "Mark a management cluster as one to be emptied, and place no more clusters there",
	}[verb]
	long := short + "."
	if verb == "drain" {
		long += "\nNothing is moved yet: the clusters that are there stay until they are deleted."
	}
	cmd := &cobra.Command{Use: verb + " NAME", Short: short, Long: long, Args: cobra.ExactArgs(1)}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return updateMC(session, cmd.Context(), args[0], platform.ManagementClusterUpdate{State: state}, o)
	}
	return cmd
}

// updateMC changes a management cluster and prints its new state.
func updateMC(session *terminal.Session, ctx context.Context, name string, u platform.ManagementClusterUpdate,
	o *terminal.Output) error {
	api, err := session.Client()
	if err != nil {
		return err
	}
	mc, err := api.UpdateManagementCluster(ctx, name, u)
	if err != nil {
		return err
	}
	return o.Print(session.Out, mc, func(w io.Writer) {
		fmt.Fprintf(w, "%s is %s, with %s planes and %s MiB taken\n", mc.Name, terminal.Dash(string(mc.State)),
			reservedText(mc, "planes"), reservedText(mc, "memory_mib"))
	})
}
