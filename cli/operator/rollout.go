package operator

import (
	"os"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/rollout"
)

// Rollout is the command of changes that go from sector to sector.
func Rollout(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "rollout", Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Carry a change of the configuration through all regions, sector by sector",
		Long: `Carries a change of the configuration in Git through the regions of an environment:
sector after sector, and in each sector canaries first, then shares of its regions,
then the rest. Gates read the health of each changed region; a failing gate stops
the rollout. docs/rollouts.md describes the file of a rollout.`,
	}
	cmd.AddCommand(rolloutPlan(session), rolloutSchema(session))
	return cmd
}

// readRollout reads the file of a rollout.
func readRollout(session *terminal.Session, file string) (rollout.Rollout, error) {
	data, err := session.ReadFile(file)
	if err != nil {
		return rollout.Rollout{}, err
	}
	return rollout.Parse(file, data)
}

// treeOf is the configuration in a directory, as its files are now.
func treeOf(dir string) rollout.Tree { return rollout.Tree{Files: os.DirFS(dir), Dir: dir} }
