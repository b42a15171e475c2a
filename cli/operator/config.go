package operator

import (
	"os"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/gitops"
)

// Config is the command of the configuration of all regions in Git.
func Config(session *terminal.Session) *cobra.Command {
	var tree configTree
	cmd := &cobra.Command{
		Use: "config", Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Configuration of all regions in Git: render, explain, diff",
		Long: `Reads the configuration of all regions from a directory of YAML files, and
renders the files from which Argo CD, Helm and Terraform deploy each cluster. A
setting is inherited: defaults, environment, sector, region, management cluster.
docs/gitops.md describes the files.`,
		Example: `  atoll config render
  atoll config explain versions.atoll --region eu-central-1
  atoll config diff HEAD~1..HEAD`,
	}
	cmd.PersistentFlags().StringVar(&tree.dir, "config", "config", "directory of the configuration")
	cmd.AddCommand(configRender(session, &tree), configExplain(session, &tree), configDiff(session, &tree),
		configSchema(session))
	return cmd
}

// configTree is the directory of the configuration, which a flag names.
type configTree struct{ dir string }

func (c *configTree) load() (gitops.Fleet, error) { return gitops.Load(os.DirFS(c.dir), c.dir) }
