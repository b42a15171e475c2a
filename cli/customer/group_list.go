package customer

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func groupList(a *authorizer) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the groups of the account", Args: cobra.NoArgs,
		Example: "  atoll group list"}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
			groups, err := in.Groups(ctx)
			if err != nil {
				return err
			}
			return o.Print(a.session.Out, groups, func(w io.Writer) {
				rows := [][]string{{"NAME", "ID", "AGE", "DESCRIPTION"}}
				for _, group := range groups {
					rows = append(rows, []string{group.Name, group.GroupID, terminal.Ago(group.CreatedAt, time.Now()),
						terminal.Dash(group.Description)})
				}
				terminal.Table(w, rows)
			})
		})
	}
	return cmd
}
