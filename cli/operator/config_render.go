package operator

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/gitops"
	"atoll.dev/internal/gitrepo"
)

// errNotRendered is the error of --check.
var errNotRendered = errors.New("the rendered files are not those of the configuration: run `atoll config render` " +
	"and commit")

// renderedFile is a line of the output of `config render`.
type renderedFile struct {
	Path   string `json:"path"`
	Action string `json:"action"` // add, change, remove
}

func configRender(session *terminal.Session, tree *configTree) *cobra.Command {
	var out string
	var check bool
	cmd := &cobra.Command{
		Use: "render", Args: cobra.NoArgs,
		Short: "Write the files from which Argo CD, Helm and Terraform deploy the clusters",
		Long: `Writes for each regional cluster and each management cluster its Argo CD root
application and application set, its Helm values and its Terraform variables, and
for each region its own Atoll configuration. It removes rendered files that
nothing renders any more, and touches no other file. Equal configuration gives
equal bytes.

Run it at the top of the repository: values that the schema of a chart in git.charts
refuses are mistakes. For a cluster with a git.revision, what it runs is checked too:
the charts and the rendered values of that commit. It asks no remote: it names the
commit of the clone for each tag and branch, and does not check a revision that the
clone does not have.

With --check it writes nothing, shows the difference, and fails if there is one.`,
		Example: `  atoll config render
  atoll config render --config examples/config --out examples/deploy --check`,
	}
	o := terminal.AddOutputFlag(cmd)
	cmd.Flags().StringVar(&out, "out", "deploy", "directory of the rendered files")
	cmd.Flags().BoolVar(&check, "check", false, "write nothing; fail when the files are not as they would be rendered")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		collectLessOften()
		fleet, err := tree.load()
		if err != nil {
			return err
		}
		unchecked, err := checkoutOf(cmd.Context(), gitrepo.Branch{Dir: "."}).CheckCharts(fleet)
		if err != nil {
			return err
		}
		for _, text := range unchecked {
			fmt.Fprintln(session.Err, text)
		}
		files, err := gitops.Render(fleet)
		if err != nil {
			return err
		}
		change := gitops.Directory(out).Compare
		if !check {
			change = func(files gitops.Files) ([]gitops.Difference, error) {
				return gitops.Directory(out).Write(cmd.Context(), files)
			}
		}
		differences, err := change(files)
		if err != nil {
			return err
		}
		lines := make([]renderedFile, len(differences))
		for i, d := range differences {
			lines[i] = renderedFile{d.Path, actionOn(d)}
		}
		err = o.Print(session.Out, lines, func(w io.Writer) {
			for i, d := range differences {
				if check {
					fmt.Fprint(w, d.Text())
				} else {
					fmt.Fprintf(w, "%-7s %s\n", lines[i].Action, d.Path)
				}
			}
			fmt.Fprintf(w, "%d regions, %d files, %d differ\n", len(fleet.Regions()), len(files), len(differences))
		})
		if err == nil && check && len(differences) > 0 {
			return errNotRendered
		}
		return err
	}
	return cmd
}

// renderMemory is where the garbage collector of a render returns to its usual work.
const renderMemory = 1 << 30

// collectLessOften lets the heap grow to five times what is in use before a collection, up to renderMemory. A render
// keeps almost all that it allocates until it ends, so most collections find nothing: with 1,000 regions they took a
// quarter of its processor time. A GOGC or GOMEMLIMIT of the user stays.
func collectLessOften() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetGCPercent(400)
		debug.SetMemoryLimit(renderMemory)
	}
}

// actionOn returns the change of the file that a difference stands for.
func actionOn(d gitops.Difference) string {
	switch {
	case d.Before == nil:
		return "add"
	case d.After == nil:
		return "remove"
	}
	return "change"
}
