package customer

import (
	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
)

// Admin returns the command `atoll admin`.
func Admin(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "admin", Aliases: []string{"admins"}, Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Administrators of an account: add, list, remove",
		Long: `An administrator may do everything in the account, whatever policies say. The root of the
account always may, and makes the first administrator.`,
		Example: "  atoll admin add arn:aws:iam::123456789012:user/ann",
	}
	a := addAccountFlag(session, cmd)
	cmd.AddCommand(adminAdd(a), adminList(a), adminRemove(a))
	return cmd
}
