package operator

import (
	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
)

// Work returns the command `atoll work`.
func Work(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{Use: "work", Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "ManifestWorks, objects for management clusters: apply, list, get, why, delete",
		Example: `  atoll work apply -f examples/hello.yaml --cluster management-01 --wait
  atoll work list --cluster management-01`}
	cmd.AddCommand(workApply(session), workList(session), workGet(session), workWhy(session), workDelete(session))
	return cmd
}
