package customer

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func groupCreate(a *accountCaller) *cobra.Command {
	var description string
	cmd := &cobra.Command{Use: "create NAME", Short: "Create a group without members", Args: cobra.ExactArgs(1),
		Example: `  atoll group create web-team --description "who runs the shop"`}
	cmd.Flags().StringVar(&description, "description", "", "description for people")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.call(cmd.Context(), func(ctx context.Context, in *client.Authorization) error {
			group, err := in.CreateGroup(ctx, platform.GroupRequest{Name: args[0], Description: description})
			if err != nil {
				return err
			}
			return o.Print(a.session.Out, group, func(w io.Writer) {
				fmt.Fprintf(w, "group %s created (id %s)\n", group.Name, group.GroupID)
			})
		})
	}
	return cmd
}
