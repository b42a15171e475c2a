package operator

import (
	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/rollout"
)

func rolloutSchema(session *terminal.Session) *cobra.Command {
	return &cobra.Command{
		Use: "schema", Args: cobra.NoArgs,
		Short:   "Print the JSON Schema of the file of a rollout, with the documentation of each key",
		Example: "  atoll rollout schema > rollout.schema.json",
		RunE: func(*cobra.Command, []string) error {
			_, err := session.Out.Write(rollout.Schema)
			return err
		},
	}
}
