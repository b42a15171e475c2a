package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/gitops"
	"atoll.dev/internal/gitrepo"
)

func configDiff(session *terminal.Session, tree *configTree) *cobra.Command {
	cmd := &cobra.Command{
		Use: "diff REV[..REV]", Args: cobra.ExactArgs(1),
		Short: "Show which regions and clusters a commit changes, and what in each",
		Long: `Compares the configuration of two revisions of the Git repository, or of one
revision with the files as they are now. It shows each region and each management
cluster whose settings differ, also where they inherit the change.`,
		Example: `  atoll config diff HEAD            # what is not committed yet
  atoll config diff HEAD~1..HEAD    # what the last commit changes
  atoll config diff main..feature -o json`,
	}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		before, after, two := strings.Cut(args[0], "..")
		if before == "" || two && after == "" || strings.HasPrefix(before, "-") {
			return fmt.Errorf("%q names no revisions; write REV or REV..REV", args[0])
		}
		old, err := loadRevision(cmd.Context(), tree.dir, before)
		if err != nil {
			return err
		}
		now, err := gitops.Fleet{}, error(nil)
		if two {
			now, err = loadRevision(cmd.Context(), tree.dir, after)
		} else {
			now, err = tree.load()
		}
		if err != nil {
			return err
		}
		changes := gitops.Compare(old, now)
		if changes == nil {
			changes = []gitops.Change{}
		}
		return o.Print(session.Out, changes, func(w io.Writer) { printChanges(w, changes) })
	}
	return cmd
}

// loadRevision loads the configuration as it is in a revision. A revision that does not
// have the directory has no regions.
func loadRevision(ctx context.Context, dir, revision string) (gitops.Fleet, error) {
	tree, err := gitrepo.AtRevision(ctx, dir, revision)
	if errors.Is(err, gitrepo.ErrNoDirectory) {
		return gitops.Fleet{}, nil
	}
	if err != nil {
		return gitops.Fleet{}, err
	}
	return gitops.Load(tree, revision+":"+dir)
}

func printChanges(w io.Writer, changes []gitops.Change) {
	for _, c := range changes {
		name := fmt.Sprintf("%s/%s", c.Environment, c.Region)
		if c.Cluster != "" {
			name += "/" + string(c.Cluster)
		}
		fmt.Fprintf(w, "%s %s\n", c.Kind, name)
		for _, v := range c.Values {
			fmt.Fprintf(w, "  %s\n", shownChange(v))
		}
	}
	fmt.Fprintf(w, "%d regions and clusters differ\n", len(changes))
}

// shownChange shows a value before and after, and whether a git.revision keeps it from having an effect.
func shownChange(v gitops.ValueChange) string {
	text := fmt.Sprintf("%s: %s -> %s", v.Key, shownValue(v.Before), shownValue(v.After))
	if v.Pinned != "" {
		text += fmt.Sprintf(" (no effect: the git.revision %s has the values)", v.Pinned)
	}
	return text
}

// shownValue shows a value, or that there is none.
func shownValue(v any) string {
	if v == nil {
		return "(none)"
	}
	return asJSONText(v)
}
