package customer

import (
	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
)

func groupRemove(a *accountCaller) *cobra.Command {
	cmd := &cobra.Command{Use: "remove NAME ARN...", Short: "Remove principals from a group", Args: cobra.MinimumNArgs(2),
		Example: "  atoll group remove web-team arn:aws:iam::123456789012:user/ann"}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.updateMembers(cmd.Context(), args[0], platform.MemberUpdate{Remove: args[1:]}, o)
	}
	return cmd
}
