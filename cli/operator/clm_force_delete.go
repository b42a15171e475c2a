package operator

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
)

func clmForceDelete(session *terminal.Session) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "force-delete KIND ID|NAME",
		Short: "Remove a resource whose deletion does not end",
		Long: `Removes a resource that is being deleted, and all below it, without waiting for its
adapters. Objects that they made for it remain, and the region does not know of them.
The history records the reason.`,
		Example: `  atoll clm force-delete clusters my-cluster --reason "management-07 burnt down"`,
		Args:    requireResource,
	}
	call := addCLMFlags(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why; the region records it")
	cmd.MarkFlagRequired("reason")
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *clmConnection) error {
			in, r, err := l.findOne(ctx, args)
			if err != nil {
				return err
			}
			if err := l.ForceDelete(ctx, in, r.ID, reason); err != nil {
				return err
			}
			session.Printf("%s %s (%s) is removed; objects that adapters made for it may still exist\n", r.Kind, r.Name, r.ID)
			return nil
		})
	}
	return cmd
}
