package operator

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func accountCreate(session *terminal.Session) *cobra.Command {
	var privileged bool
	cmd := &cobra.Command{
		Use: "create ID", Short: "Provision an account; ID has 12 digits", Args: cobra.ExactArgs(1),
		Long: `Provisions an account. Its root may then do everything in the account. Another principal
may do something when it is an administrator, or when an administrator attaches a policy to it.`,
		Example: "  atoll account create 123456789012",
	}
	cmd.Flags().BoolVar(&privileged, "privileged", false,
		"the account's principals operate the region: management clusters, works, accounts")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		account := client.AccountID(args[0])
		return callAccounts(session, cmd.Context(), account, func(ctx context.Context, api *client.Client) error {
			account, err := api.CreateAccount(ctx, platform.AccountRequest{AccountID: args[0], Privileged: privileged})
			if err != nil {
				return err
			}
			return o.Print(session.Out, account, func(w io.Writer) {
				fmt.Fprintf(w, "account %s created\nkey pair of its root: atoll key create --account %s --principal "+
					"arn:aws:iam::%s:root\n", account.AccountID, account.AccountID, account.AccountID)
			})
		})
	}
	return cmd
}
