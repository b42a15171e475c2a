package operator

import (
	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/cluster"
)

func mcDelete(session *terminal.Session) *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME",
		Short: "Remove a management cluster; refused while works exist on it",
		Long: `Removes a management cluster from the region; the region refuses it while works exist on
it. The command stops the processes of a local management cluster; its data stays until
"atoll down --purge".`,
		Example: "  atoll mc delete edge-7",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := session.Client()
			if err != nil {
				return err
			}
			if err := api.DeleteManagementCluster(cmd.Context(), args[0]); err != nil {
				return err
			}
			session.Printf("%s deleted\n", args[0])
			home, err := session.Home()
			if err != nil {
				return err
			}
			if _, err := home.State(); err != nil {
				return nil // the region is elsewhere
			}
			return home.RemoveCluster(cluster.ManagementCluster(args[0]))
		},
	}
}
