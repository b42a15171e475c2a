package customer

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

// WhoAmI returns the command `atoll whoami`.
func WhoAmI(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "whoami", Args: cobra.NoArgs,
		Short:   "Show the caller's principal and account, and whether it is an administrator",
		Example: "  atoll whoami -o json",
	}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			caller, err := api.WhoAmI(ctx)
			if err != nil {
				return err
			}
			return o.Print(session.Out, caller, func(w io.Writer) { callerTable(w, caller) })
		})
	}
	return cmd
}

// callerTable prints a caller as text.
func callerTable(w io.Writer, caller platform.Caller) {
	answer := map[bool]string{true: "yes", false: "no"}
	provisioned := answer[caller.Provisioned]
	if !caller.Provisioned {
		provisioned += fmt.Sprintf("; an operator provisions it: atoll account create %s", caller.AccountID)
	}
	terminal.Table(w, [][]string{
		{"Principal", caller.PrincipalArn}, {"Account", caller.AccountID}, {"Provisioned", provisioned},
		{"Privileged", answer[caller.Privileged]}, {"Administrator", answer[caller.Admin]},
		{"Groups", terminal.DashIfEmpty(strings.Join(caller.Groups, ", "))},
	})
}
