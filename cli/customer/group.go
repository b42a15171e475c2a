package customer

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

// Group returns the command `atoll group`.
func Group(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "group", Aliases: []string{"groups"}, Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Groups of principals: create, list, get, add, remove, delete",
		Long: `A group has principals of the account as members. A policy that is attached to the group
decides for all of them. NAME is a group's name or its id.`,
		Example: `  atoll group create web-team
  atoll group add web-team arn:aws:iam::123456789012:user/ann
  atoll policy attach ReadOnly --group web-team`,
	}
	a := addAccountFlag(session, cmd)
	cmd.AddCommand(groupCreate(a), groupList(a), groupGet(a), groupAdd(a), groupRemove(a), groupDelete(a))
	return cmd
}

// findGroup finds a group by its id or name.
func (a *accountCaller) findGroup(ctx context.Context, in *client.Authorization, name string) (platform.Group, error) {
	group, err := in.FindGroup(ctx, name)
	return group, a.adviseNotFound(err, "atoll group list")
}
