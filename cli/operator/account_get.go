package operator

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func accountGet(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "get ID", Short: "Show an account", Args: cobra.ExactArgs(1),
		Example: "  atoll account get 123456789012 -o yaml"}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		account := client.AccountID(args[0])
		return callAccounts(session, cmd.Context(), account, func(ctx context.Context, api *client.Client) error {
			account, err := api.Account(ctx, account)
			if err != nil {
				return err
			}
			return o.Print(session.Out, account, func(w io.Writer) { accountTable(w, account) })
		})
	}
	return cmd
}
