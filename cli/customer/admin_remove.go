package customer

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/client"
)

func adminRemove(a *accountCaller) *cobra.Command {
	return &cobra.Command{
		Use: "remove ARN", Short: "Make an administrator an ordinary principal again", Args: cobra.ExactArgs(1),
		Long: `Makes an administrator an ordinary principal again: policies decide what it may do. The
region refuses it for the last administrator of a privileged account.`,
		Example: "  atoll admin remove arn:aws:iam::123456789012:user/ann",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
				if err := in.RemoveAdmin(ctx, args[0]); err != nil {
					return a.adviseNotFound(err, "atoll admin list")
				}
				a.session.Printf("%s is no administrator any more\n", args[0])
				return nil
			})
		},
	}
}
