package operator

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func accountDelete(session *terminal.Session) *cobra.Command {
	return &cobra.Command{
		Use: "delete ID", Args: cobra.ExactArgs(1),
		Short: "Delete an account with its administrators, groups and policies; refused while it has clusters",
		Long: `Deletes an account with its administrators, groups, policies and attachments. The region
refuses it while the account has clusters, and for the caller's own account. The key
pairs of the account are not deleted; the region then refuses every request signed with them.`,
		Example: "  atoll account delete 123456789012",
		RunE: func(cmd *cobra.Command, args []string) error {
			account := client.AccountID(args[0])
			return callAccounts(session, cmd.Context(), account, func(ctx context.Context, api *client.Client) error {
				if err := api.DeleteAccount(ctx, account); err != nil {
					return err
				}
				session.Printf("account %s deleted\n", args[0])
				return nil
			})
		},
	}
}
