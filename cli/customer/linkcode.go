package customer

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func linkCodes(a *accountCaller) *cobra.Command {
	return listCommand(a, &cobra.Command{
		Use: "codes", Short: "List the link codes of the account that nobody has redeemed",
		Long: `Lists the codes of "atoll link create" that nobody has redeemed, never the code itself. An expired code
stays in the list for a day.`,
		Example: `  atoll link codes
  atoll link codes -o json
  atoll link codes --account 123456789012   # an operator`,
	}, (*client.Authorization).LinkCodes, printLinkCodes)
}

func printLinkCodes(w io.Writer, codes []platform.ListedLinkCode) {
	answer := map[bool]string{true: "yes", false: "no"}
	rows := [][]string{{"ID", "PRINCIPAL", "ADMIN", "EXPIRES", "CREATED BY"}}
	for _, c := range codes {
		rows = append(rows, []string{c.ID, c.PrincipalArn, answer[c.Admin], expiryOf(c.ExpiresAt, time.Now()),
			c.CreatedBy})
	}
	terminal.Table(w, rows)
}

// expiryOf shows until when a code can be redeemed.
func expiryOf(expires, now time.Time) string {
	if !now.Before(expires) {
		return "expired"
	}
	return expires.Format(time.RFC3339)
}

func linkWithdraw(a *accountCaller) *cobra.Command {
	return &cobra.Command{
		Use: "withdraw ID", Short: "Withdraw a link code: nobody can redeem it any more", Args: cobra.ExactArgs(1),
		Long: `Withdraws a link code by the id that "atoll link codes" shows. A code that somebody has redeemed is a link:
see "atoll link delete". Removing an administrator withdraws the codes that name him or that he created.`,
		Example: "  atoll link withdraw code-3f2a...",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
				if err := in.DeleteLinkCode(ctx, args[0]); err != nil {
					return a.adviseNotFound(err, "atoll link codes")
				}
				a.session.Printf("%s is withdrawn\n", args[0])
				return nil
			})
		},
	}
}
