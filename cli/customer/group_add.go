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

func groupAdd(a *accountCaller) *cobra.Command {
	cmd := &cobra.Command{Use: "add NAME ARN...", Short: "Add principals of the account to a group",
		Args:    cobra.MinimumNArgs(2),
		Example: "  atoll group add web-team arn:aws:iam::123456789012:user/ann"}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.updateMembers(cmd.Context(), args[0], platform.MemberUpdate{Add: args[1:]}, o)
	}
	return cmd
}

// updateMembers changes the members of a group, and prints the members afterwards.
func (a *accountCaller) updateMembers(ctx context.Context, name string, u platform.MemberUpdate,
	o *terminal.Output) error {
	return a.call(ctx, func(ctx context.Context, in *client.Authorization) error {
		group, err := a.findGroup(ctx, in, name)
		if err != nil {
			return err
		}
		members, err := in.UpdateMembers(ctx, group.GroupID, u)
		if err != nil {
			return err
		}
		return o.Print(a.session.Out, members, func(w io.Writer) {
			fmt.Fprintf(w, "group %s has %d members\n", group.Name, members.Total)
		})
	})
}
