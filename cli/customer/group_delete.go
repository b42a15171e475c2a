package customer

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/client"
)

func groupDelete(a *accountCaller) *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Short: "Delete a group; refused while a policy is attached to it", Args: cobra.ExactArgs(1),
		Example: "  atoll group delete web-team",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
				group, err := a.findGroup(ctx, in, args[0])
				if err != nil {
					return err
				}
				if err := in.DeleteGroup(ctx, group.GroupID); err != nil {
					return a.adviseInUse(err, "atoll policy list --group "+group.Name,
						"atoll policy detach POLICY --group "+group.Name)
				}
				a.session.Printf("group %s deleted\n", group.Name)
				return nil
			})
		},
	}
}
