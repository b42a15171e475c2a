package operator

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func accountList(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List accounts", Args: cobra.NoArgs, Example: "  atoll account list -o json"}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return callAccounts(session, cmd.Context(), "", func(ctx context.Context, api *client.Client) error {
			accounts, err := api.Accounts(ctx)
			if err != nil {
				return err
			}
			return o.Print(session.Out, accounts, func(w io.Writer) { accountTable(w, accounts...) })
		})
	}
	return cmd
}
