package operator

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/api/work"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/maestroclient"
)

func maestroForceDelete(session *terminal.Session) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "force-delete ID",
		Short: "End a resource bundle whose agent does not answer",
		Long: `Ends a bundle without the confirmation of its agent, for a management cluster that
does not come back. The bundle's objects there are not touched; if the agent
connects again, it gets the order to delete them. The reason goes into the history.`,
		Example: `  atoll maestro force-delete ID --reason "management-07 burnt down"`,
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why; the region records it")
	cmd.MarkFlagRequired("reason")
	o := addMaestroFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callMaestro(session, cmd.Context(), o, func(ctx context.Context, m *maestroclient.Client) error {
			if err := m.ForceDeleteBundle(ctx, work.ID(args[0]), reason); err != nil {
				return err
			}
			session.Printf("%s is ended; its agent gets the order to delete the work when it connects again\n", args[0])
			return nil
		})
	}
	return cmd
}
