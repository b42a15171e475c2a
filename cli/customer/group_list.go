package customer

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func groupList(a *accountCaller) *cobra.Command {
	return listCommand(a, &cobra.Command{Use: "list", Short: "List the groups of the account",
		Example: "  atoll group list"}, (*client.Authorization).Groups, printGroups)
}

func printGroups(w io.Writer, groups []platform.Group) {
	rows := [][]string{{"NAME", "ID", "AGE", "DESCRIPTION"}}
	for _, group := range groups {
		rows = append(rows, []string{group.Name, group.GroupID, terminal.FormatAge(group.CreatedAt, time.Now()),
			terminal.DashIfEmpty(group.Description)})
	}
	terminal.Table(w, rows)
}
