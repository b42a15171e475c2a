package operator

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
)

// capacityFlags are the flags with the capacity and the versions of a management cluster.
type capacityFlags struct {
	capacity map[string]int64
	versions []string
}

// addCapacityFlags gives cmd the flags of capacityFlags.
func addCapacityFlags(cmd *cobra.Command) *capacityFlags {
	o := &capacityFlags{}
	cmd.Flags().StringToInt64Var(&o.capacity, "capacity", nil,
		"amount of each resource: planes=40,memory_mib=16000; others are not limited. A control "+
			"plane takes 1 of planes and 350 of memory_mib, 3 times as much when it is medium, 6 times when it is large")
	cmd.Flags().StringSliceVar(&o.versions, "version", nil,
		"a Kubernetes version that it can run, such as 1.36.3; repeatable (default: any)")
	return o
}

func mcUpdate(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "update NAME",
		Short: "Change the labels, the capacity or the versions of a management cluster",
		Long: `Changes a management cluster's labels, capacity or versions; a given flag replaces the whole
stored value. Clusters that wait for room are tried again at once; placed clusters stay, also
when they need more than the new capacity. "atoll up" sets the capacity of a local
management cluster each time its agent starts.

The capacity bounds placements. Hosting counts the room for its warm planes by its own flag,
atoll hosting --capacity, which does not follow this command: start hosting again with the
new value. Until then it may have a warm plane too few or too many, and "atoll mc get" shows
the difference.`,
		Example: `  atoll mc update edge-7 --capacity planes=60
  atoll mc update edge-7 --label zone=north --label class=shared`,
		Args: cobra.ExactArgs(1),
	}
	labels := map[string]string{}
	cmd.Flags().StringToStringVar(&labels, "label", nil, "label, k=v; repeatable. Labels that are not named are removed")
	limits := addCapacityFlags(cmd)
	cmd.MarkFlagsOneRequired("label", "capacity", "version")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return updateMC(session, cmd.Context(), args[0], platform.ManagementClusterUpdate{Labels: labels,
			Capacity: limits.capacity, Versions: limits.versions}, o)
	}
	return cmd
}

func mcStateCommand(session *terminal.Session, verb string,
	state platform.ManagementClusterUpdateState) *cobra.Command {
	short := map[string]string{
		"cordon":   "Place no more clusters on a management cluster; its clusters stay",
		"uncordon": "Place clusters on a management cluster again",
	}[verb]
	cmd := &cobra.Command{Use: verb + " NAME", Short: short, Long: short + ".", Args: cobra.ExactArgs(1),
		Example: "  atoll mc " + verb + " edge-7"}
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
		fmt.Fprintf(w, "%s is %s, with %s planes and %s MiB taken\n", mc.Name, terminal.DashIfEmpty(string(mc.State)),
			reservedText(mc, "planes"), reservedText(mc, "memory_mib"))
	})
}
