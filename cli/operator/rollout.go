package operator

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/gitops"
	"atoll.dev/internal/gitrepo"
	"atoll.dev/rollout"
)

// Rollout returns the command `atoll rollout`.
func Rollout(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "rollout", Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Carry a change of the configuration through all regions, sector by sector",
		Long: `Carries a change of the configuration in Git through the regions of an environment:
sector after sector, and in each sector canaries first, then shares of its regions,
then the rest. Gates read the health of each changed region; a failing gate stops
the rollout. docs/rollouts.md describes the file of a rollout.`,
		Example: `  atoll rollout plan rollouts/atoll-1.5.0.yaml
  atoll rollout run rollouts/atoll-1.5.0.yaml
  atoll rollout status rollouts/atoll-1.5.0.yaml`,
	}
	cmd.AddCommand(rolloutPlan(session), rolloutSchema(session), rolloutRun(session), rolloutStatus(session),
		rolloutApprove(session),
		rolloutCommand(session, rollout.Pause, "Change no further region until resume"),
		rolloutCommand(session, rollout.Resume, "Go on after pause, or after a gate has stopped the rollout"),
		rolloutCommand(session, rollout.Abort, "End the rollout; the changed regions keep the change"),
		rolloutRevert(session))
	return cmd
}

// rolloutBranch has the flags that name the clone, the remote and the branch with the record of a rollout.
type rolloutBranch struct {
	branch           gitrepo.Branch
	config, rendered string
}

// addBranchFlags adds the flags of rolloutBranch to cmd.
func addBranchFlags(cmd *cobra.Command) *rolloutBranch {
	var b rolloutBranch
	cmd.Flags().StringVar(&b.branch.Dir, "repo", ".", "clone of the repository")
	cmd.Flags().StringVar(&b.branch.Remote, "remote", "origin", "remote of the clone that has the branch")
	cmd.Flags().StringVar(&b.branch.Name, "branch", "main", "branch that the regions follow")
	cmd.Flags().StringVar(&b.config, "config", "config", "directory of the configuration, in the repository")
	cmd.Flags().StringVar(&b.rendered, "out", "deploy", "directory of the rendered files, in the repository")
	return &b
}

// driver returns the driver of the rollout in a file of the repository.
func (b *rolloutBranch) driver(file string) (*rollout.Driver, error) {
	if file = filepath.ToSlash(filepath.Clean(file)); !fs.ValidPath(file) {
		return nil, fmt.Errorf("%q is not a path in the repository, such as rollouts/atoll-1.5.0.yaml", file)
	}
	return &rollout.Driver{Repository: b.branch, Health: rollout.Gates{}, File: file, Config: path.Clean(b.config),
		Rendered: path.Clean(b.rendered)}, nil
}

// operatorName returns the name of the user who runs a command, for the record of a rollout.
func operatorName() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return "an operator"
}

// readRollout reads the file of a rollout.
func readRollout(session *terminal.Session, file string) (rollout.Rollout, error) {
	data, err := session.ReadFile(file)
	if err != nil {
		return rollout.Rollout{}, err
	}
	return rollout.Parse(file, data)
}

// treeOf returns the configuration in a directory, and the charts of a checkout, as their files are now.
func treeOf(ctx context.Context, dir string, clone gitrepo.Branch) rollout.Tree {
	return rollout.Tree{Files: os.DirFS(dir), Dir: dir, Repository: checkoutOf(ctx, clone)}
}

// checkoutOf returns the repository of charts in a checkout: the files as they are now, and the files of each commit. A
// tag or branch names the commit that it has in the remote, if the clone has a remote.
func checkoutOf(ctx context.Context, clone gitrepo.Branch) gitops.Repository {
	return gitops.Repository{Files: os.DirFS(clone.Dir), Pinned: func(revision string, paths []string) (fs.FS,
		string, error) {
		return clone.PinnedTree(ctx, revision, paths)
	}}
}
