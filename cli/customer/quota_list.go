package customer

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func quotaList(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "Show the limits and the use of your account", Args: cobra.NoArgs,
		Example: "  atoll quota list -o json"}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return callRegion(session, cmd.Context(), func(ctx context.Context, api *client.Client) error {
			quotas, err := api.Quotas(ctx)
			if err != nil {
				return err
			}
			return o.Print(session.Out, quotas, func(w io.Writer) { terminal.QuotaTable(w, quotas) })
		})
	}
	return cmd
}
