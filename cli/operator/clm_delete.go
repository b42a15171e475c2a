package operator

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
)

func clmDelete(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "delete KIND ID|NAME",
		Short: "Delete a resource and what belongs to it",
		Long: `Asks for the deletion of a resource. It is gone when its adapters have said that they
have cleaned up; "atoll clm why" says who has not.`,
		Example: "  atoll clm delete clusters my-cluster --wait",
		Args:    requireResource,
	}
	call := addCLMFlags(cmd)
	wait := terminal.AddWaitFlags(cmd, "gone")
	cmd.ValidArgsFunction = completeResources(session, call)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *lifecycle) error {
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
