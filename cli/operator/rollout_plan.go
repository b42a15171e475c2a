package operator

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/gitops"
	"atoll.dev/internal/gitrepo"
	"atoll.dev/rollout"
)

func rolloutPlan(session *terminal.Session) *cobra.Command {
	var config, at string
	var branch gitrepo.Branch
	cmd := &cobra.Command{
		Use: "plan FILE", Args: cobra.ExactArgs(1),
		Short: "Show each step of a rollout before anything runs",
		Long: `Shows the steps of a rollout: which regions and management clusters change, what
changes in each, what restarts, and how long each step and the rollout take: the
expected time, and the longest time, when each region needs its whole deadline. Time
that passes until an approval, during a pause and while gates cannot be read is not
included. The command reads the files as they are now, and changes nothing. "run"
uses the same plan.

A revision in the change is shown as the commit that it names in the remote now;
"run" resolves it once, when the rollout begins. A revision that neither the remote
nor the clone has is an error.`,
		Example: `  atoll rollout plan rollouts/atoll-1.5.0.yaml
  atoll rollout plan rollouts/atoll-1.5.0.yaml --at 2026-12-01T08:00:00Z -o json`,
	}
	o := terminal.AddOutputFlag(cmd)
	cmd.Flags().StringVar(&config, "config", "config", "directory of the configuration")
	cmd.Flags().StringVar(&branch.Dir, "repo", ".", "clone of the repository, which resolves the revision of the change")
	cmd.Flags().StringVar(&branch.Remote, "remote", "origin", "remote of the clone that has the revision")
	cmd.Flags().StringVar(&at, "at", "", "when the rollout would begin, such as 2026-12-01T08:00:00Z (default: now)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		begin := time.Now()
		if at != "" {
			var err error
			if begin, err = time.Parse(time.RFC3339, at); err != nil {
				return fmt.Errorf("--at %q is not a time such as 2026-12-01T08:00:00Z", at)
			}
		}
		r, err := readRollout(session, args[0])
		if err != nil {
			return err
		}
		named := r.Change.Revision
		if r, err = r.Resolve(cmd.Context(), branch); err != nil {
			return err
		}
		preview, err := treeOf(cmd.Context(), config, branch).Preview(r, begin)
		if err != nil {
			return err
		}
		preview.Revision = r.Change.Revision
		return o.Print(session.Out, preview, func(w io.Writer) {
			if named != preview.Revision {
				fmt.Fprintf(w, "the revision %s is the commit %s\n", named, preview.Revision)
			}
			printPreview(w, preview)
		})
	}
	return cmd
}

// printPreview prints the steps of a rollout and its sums as text.
func printPreview(w io.Writer, p rollout.Preview) {
	for i, step := range p.Steps {
		fmt.Fprintf(w, "%d. sector %s, %s (regions: %d, management clusters: %d)", i+1, step.Sector, step.Name, step.Regions,
			step.Clusters)
		if !step.Begin.IsZero() {
			fmt.Fprintf(w, "; %s to %s", step.Begin.UTC().Format("2006-01-02 15:04"),
				step.End.UTC().Format("2006-01-02 15:04 MST"))
		}
		fmt.Fprintln(w)
		fmt.Fprintf(w, "   expected %s, longest %s", time.Duration(step.Expected), time.Duration(step.Longest))
		if !step.Latest.IsZero() {
			fmt.Fprintf(w, ", at the latest until %s", step.Latest.UTC().Format("2006-01-02 15:04 MST"))
		}
		fmt.Fprintln(w)
		if step.Approval {
			fmt.Fprintf(w, "   begins after: atoll rollout approve FILE %s\n", step.Sector)
		}
		printStepChanges(w, step.Changes)
		if len(step.Restarts) > 0 {
			fmt.Fprintf(w, "   restarts: %s\n", strings.Join(step.Restarts, "; "))
		}
		if step.Soak > 0 {
			fmt.Fprintf(w, "   then gates must pass for %s\n", time.Duration(step.Soak))
		}
	}
	if len(p.Unchanged) > 0 {
		fmt.Fprintf(w, "regions and management clusters that already have the values: %d\n", len(p.Unchanged))
	}
	fmt.Fprintf(w, "regions: %d, management clusters: %d; expected %s, longest %s", p.Regions, p.Clusters,
		time.Duration(p.Expected).Round(time.Minute), time.Duration(p.Longest).Round(time.Minute))
	if p.Approvals > 0 {
		fmt.Fprintf(w, ", besides the time until approvals: %d", p.Approvals)
	}
	fmt.Fprintln(w)
	if p.Frozen {
		fmt.Fprintln(w, "the freezes have no end: the steps without a time never begin")
	}
	for _, text := range p.Unchecked {
		fmt.Fprintln(w, text)
	}
}

// printStepChanges prints the changes of a step. Regions and clusters with the same changes share a line.
func printStepChanges(w io.Writer, changes []gitops.Change) {
	var texts []string
	names := map[string][]string{} // by text
	for _, c := range changes {
		var values []string
		for _, v := range c.Values {
			values = append(values, shownChange(v))
		}
		name := string(c.Region)
		if c.Cluster != "" {
			name += "/" + string(c.Cluster)
		}
		text := strings.Join(values, "\n     ")
		if names[text] == nil {
			texts = append(texts, text)
		}
		names[text] = append(names[text], name)
	}
	for _, text := range texts {
		fmt.Fprintf(w, "   %s\n     %s\n", strings.Join(names[text], ", "), text)
	}
}
