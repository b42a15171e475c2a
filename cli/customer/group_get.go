package customer

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

// groupWithMembers is a group with the ARNs of its members.
type groupWithMembers struct {
	platform.Group
	Members []string `json:"members"`
}

func groupGet(a *accountCaller) *cobra.Command {
	cmd := &cobra.Command{Use: "get NAME", Short: "Show a group and its members", Args: cobra.ExactArgs(1),
		Example: "  atoll group get web-team -o yaml"}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
			group, err := a.findGroup(ctx, in, args[0])
			if err != nil {
				return err
			}
			members, err := in.Members(ctx, group.GroupID)
			if err != nil {
				return err
			}
			return o.Print(a.session.Out, groupWithMembers{group, members}, func(w io.Writer) {
				rows := [][]string{{"Name", group.Name}, {"ID", group.GroupID},
					{"Description", terminal.DashIfEmpty(group.Description)}}
				for _, member := range members {
					rows = append(rows, []string{"Member", member})
				}
				terminal.Table(w, rows)
			})
		})
	}
	return cmd
}
