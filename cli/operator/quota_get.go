package operator

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func quotaGet(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "get --account ID", Short: "Show the limits and the use of an account; for operators",
		Args: cobra.NoArgs, Example: "  atoll quota get --account 123456789012 -o json"}
	return quotaCommand(session, cmd, func(ctx context.Context, api *client.Client, account client.AccountID, _ []string) (
		platform.QuotaList, error) {
		return api.AccountQuotas(ctx, account)
	})
}
