package operator

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/fleet"
	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/cluster"
)

func mcLost(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lost NAME",
		Short: "Give a management cluster up: recover its clusters elsewhere from their backups",
		Long: `Gives up a management cluster whose agent is not connected. The command first sets the state
Draining, so that the management cluster gets no more clusters. Then it recovers each of its
clusters on another management cluster with the same store of backups, --parallel at once, as
"atoll cluster move --recover" does. The last ten seconds of writes may be missing. A cluster
without a backup, or without room elsewhere, is reported and does not stop the others.

Stop the lost machine first, if you can. A machine that was only cut off serves its clusters until
it reaches the store of the backups again, and then stops them within 15 seconds. Its remaining
objects of these clusters are deleted when its agent is connected again.

The command can be interrupted and repeated: recoveries that have begun go on, and it goes on
with the clusters that are left.`,
		Example: `  atoll mc lost edge-7 --parallel 4
  atoll mc lost edge-7 -o json`,
		Args: cobra.ExactArgs(1),
	}
	f := &drainFlags{}
	cmd.Flags().IntVar(&f.parallel, "parallel", 1, "how many clusters are recovered at once")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 10*time.Minute, "how long to wait for one cluster")
	call, out := addCLMFlags(cmd), terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(); err != nil {
			return err
		}
		api, err := session.Client()
		if err != nil {
			return err
		}
		mc, err := api.ManagementCluster(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if mc.State != platform.ManagementClusterStateLost && mc.State != platform.ManagementClusterStateUnheard {
			return fmt.Errorf("%s is connected: \"atoll mc drain %s --move\" moves its clusters without the loss of a "+
				"write; to give it up, stop its machine first", mc.Name, mc.Name)
		}
		return drainManagementCluster(session, cmd.Context(), call, out,
			&drain{moves: f.moves(fleet.Recover), from: cluster.ManagementCluster(mc.Name)})
	}
	return cmd
}
