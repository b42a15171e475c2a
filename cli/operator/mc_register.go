package operator

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
)

func mcRegister(session *terminal.Session) *cobra.Command {
	labels := map[string]string{}
	cmd := &cobra.Command{
		Use:   "register NAME",
		Short: "Register a management cluster in the region under a name",
		Long: `Registers a management cluster under a name that never changes: the name is its
certificate's common name and its place in the bus's topics. Clusters are placed on
it as soon as its agent is connected.`,
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
