package operator

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

// Quota returns the verbs of `atoll quota` for operators.
func Quota(session *terminal.Session) []*cobra.Command {
	return []*cobra.Command{quotaGet(session), quotaSet(session)}
}

// quotaCommand completes a command about the quotas of one account: do returns these, and the command prints them.
func quotaCommand(session *terminal.Session, cmd *cobra.Command, do func(context.Context, *client.Client,
	client.AccountID, []string) (platform.QuotaList, error)) *cobra.Command {
	var account client.AccountID
	cmd.Flags().StringVar((*string)(&account), "account", "", "the account, 12 digits (required)")
	if err := cmd.MarkFlagRequired("account"); err != nil {
		panic(err) // the flag was defined a line before
	}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callAccounts(session, cmd.Context(), account, func(ctx context.Context, api *client.Client) error {
			quotas, err := do(ctx, api, account, args)
			if err != nil {
				return err
			}
			return o.Print(session.Out, quotas, func(w io.Writer) { terminal.QuotaTable(w, quotas) })
		})
	}
	return cmd
}
