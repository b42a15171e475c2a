package operator

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
)

func clmDelete(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "delete KIND ID|NAME",
		Short: "Delete a resource and the resources below it",
		Long: `Requests the deletion of a resource. It is removed when its adapters have reported that
they have cleaned up; "atoll clm why" lists the adapters that have not.`,
		Example: "  atoll clm delete clusters my-cluster --wait",
		Args:    requireResource,
	}
	call := addCLMFlags(cmd)
	wait := terminal.AddWaitFlags(cmd, "gone")
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *clmConnection) error {
			in, r, err := l.findOne(ctx, args)
			if err != nil {
				return err
			}
			if r, err = l.Delete(ctx, in, r.ID, ""); err != nil {
				return err
			}
			session.Printf("deletion of %s %s (%s) ordered\n", r.Kind, r.Name, r.ID)
			if !wait.Wait {
				return nil
			}
			return awaitResource(session, ctx, l, in, r, resourceGone, wait.Timeout, session.Out)
		})
	}
	return cmd
}
