package operator

import (
	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
)

func Work(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "work", Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "ManifestWorks: objects that are applied on management clusters"}
	cmd.AddCommand(workApply(session), workList(session), workGet(session), workWhy(session), workDelete(session))
	return cmd
}
