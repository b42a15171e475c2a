package operator

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/rollout"
)

// rolloutCommand returns the command by which an operator pauses, resumes or aborts a rollout.
func rolloutCommand(session *terminal.Session, command rollout.Command, short string) *cobra.Command {
	verb := string(command)
	cmd := &cobra.Command{
		Use: verb + " FILE", Args: cobra.ExactArgs(1), Short: short,
		Long: short + ".\n\nIt writes a commit on the branch of the remote. A running `atoll rollout run` follows\n" +
			"it after its next observation of the gates.",
		Example: fmt.Sprintf("  atoll rollout %s rollouts/atoll-1.5.0.yaml", verb),
	}
	b := addBranchFlags(cmd)
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return runRolloutCommand(session, cmd, o, b, args[0], command)
	}
	return cmd
}

// rolloutRevert returns the command by which an operator reverts a rollout.
func rolloutRevert(session *terminal.Session) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "revert FILE", Args: cobra.ExactArgs(1),
		Short: "End the rollout, and give the changed regions their earlier values",
		Long: `Ends the rollout, and gives all regions that it has changed their earlier values, in one
commit on the branch of the remote.

When it finds hand edits, it reverts nothing and returns an error that names each with
file and line. Hand edits are: a value of the rollout that somebody has changed since, a
changed region that somebody has removed, and rendered files that differ from what the
configuration renders. With --force it overwrites them; a removed region stays removed.

A rollout with onFailure: revert keeps hand edits when it reverts by itself, and its
record names them.`,
		Example: `  atoll rollout revert rollouts/atoll-1.5.0.yaml
  atoll rollout revert rollouts/atoll-1.5.0.yaml --force`,
	}
	b := addBranchFlags(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "overwrite changes that were made by hand")
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		command := rollout.Revert
		if force {
			command = rollout.ForceRevert
		}
		return runRolloutCommand(session, cmd, o, b, args[0], command)
	}
	return cmd
}

// runRolloutCommand records an operator's command in the record of a rollout, and prints the record.
func runRolloutCommand(session *terminal.Session, cmd *cobra.Command, o *terminal.Output, b *rolloutBranch, file string,
	command rollout.Command) error {
	return changeRecord(session, cmd, o, b, file, func(_ rollout.Plan, s rollout.State) (rollout.State,
		[]rollout.Effect, error) {
		return s.Command(command, operatorName(), time.Now())
	})
}

func rolloutApprove(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "approve FILE SECTOR", Args: cobra.ExactArgs(2),
		Short: "Permit a rollout to begin with a sector",
		Long: `Permits a rollout to begin with a sector that waits for approval. The record has the
name of the user who runs the command.`,
		Example: "  atoll rollout approve rollouts/atoll-1.5.0.yaml main",
	}
	b := addBranchFlags(cmd)
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return changeRecord(session, cmd, o, b, args[0], func(p rollout.Plan, s rollout.State) (rollout.State,
			[]rollout.Effect, error) {
			return p.Approve(s, args[1], operatorName(), time.Now())
		})
	}
	return cmd
}

// changeRecord changes the state in the record of a rollout in the repository by change, and prints the record.
func changeRecord(session *terminal.Session, cmd *cobra.Command, o *terminal.Output, b *rolloutBranch, file string,
	change func(rollout.Plan, rollout.State) (rollout.State, []rollout.Effect, error)) error {
	d, err := b.driver(file)
	if err != nil {
		return err
	}
	record, err := d.Command(cmd.Context(), change)
	if err != nil {
		return err
	}
	return o.Print(session.Out, record, func(w io.Writer) { printRecord(w, record) })
}
