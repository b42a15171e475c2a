package customer

import (
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func adminList(a *accountCaller) *cobra.Command {
	return listCommand(a, &cobra.Command{Use: "list", Short: "List the administrators of the account",
		Example: "  atoll admin list\n  atoll admin list --account 123456789012   # an operator"},
		(*client.Authorization).Admins, printPrincipals)
}

// printPrincipals prints ARNs as a table.
func printPrincipals(w io.Writer, principals []string) {
	rows := [][]string{{"PRINCIPAL"}}
	for _, principal := range principals {
		rows = append(rows, []string{principal})
	}
	terminal.Table(w, rows)
}
