package customer

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func adminList(a *authorizer) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the administrators of the account", Args: cobra.NoArgs,
		Example: "  atoll admin list\n  atoll admin list --account 123456789012   # an operator"}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
			admins, err := in.Admins(ctx)
			if err != nil {
				return err
			}
			return o.Print(a.session.Out, admins, func(w io.Writer) { principalTable(w, admins) })
		})
	}
	return cmd
}

// principalTable prints ARNs as text.
func principalTable(w io.Writer, principals []string) {
	rows := [][]string{{"PRINCIPAL"}}
	for _, principal := range principals {
		rows = append(rows, []string{principal})
	}
	terminal.Table(w, rows)
}
