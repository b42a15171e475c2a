package operator

import (
	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/gitops"
)

func configSchema(session *terminal.Session) *cobra.Command {
	return &cobra.Command{
		Use: "schema", Args: cobra.NoArgs,
		Short: "Print the JSON Schema of the configuration, which documents each key",
		Example: `  atoll config schema >config.schema.json    # for the completion of an editor
  # yaml-language-server: $schema=config.schema.json`,
		RunE: func(*cobra.Command, []string) error {
			_, err := session.Out.Write(gitops.Schema)
			return err
		},
	}
}
