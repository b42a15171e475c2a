package operator

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/gitops"
	"atoll.dev/local"
)

// unset is shown for a setting without a value.
const unset = "not set"

// errDrift is the error of `region status` when something differs.
var errDrift = errors.New("the region differs from its declaration: commit and render what is missing, and run " +
	"`atoll region apply`")

// regionDrift is the output of `region status`.
type regionDrift struct {
	Region string `json:"region"`
	Home   string `json:"home"`
	// Tree is the directory of the configuration that was compared; "" when none was.
	Tree  string        `json:"tree"`
	Drift []local.Drift `json:"drift"`
	// NotRendered are the rendered files of the region that differ from a new rendering of the tree.
	NotRendered []string `json:"notRendered"`
	// NotApplied are declared values that have no effect on this machine. They are no drift.
	NotApplied []local.Unapplied `json:"notApplied"`
}

func regionStatus(session *terminal.Session, from *string) *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use: "status REGION", Args: cobra.ExactArgs(1),
		Short: "Compare the declared, the rendered and the running region; fail when they differ",
		Long: `Compares three sides: what the configuration declares, what was rendered of it, and
what runs. It shows each value in which two of them differ, and each rendered file of
the region that is not as the configuration renders it, and fails if there is one.
Without a directory of the configuration it compares the rendered files and what runs.
After that it shows the declared values that have no effect on one machine; they are
no difference.`,
		Example: `  atoll region status eu-west-1
  atoll region status eu-west-1 --from ~/platform/deploy --config ~/platform/config
  atoll region status eu-west-1 -o json | jq .drift`,
	}
	cmd.Flags().StringVar(&config, "config", "",
		`directory of the configuration; "none" compares without (default config beside --from, where it exists)`)
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d, home, err := declaredRegion(session, *from, args[0])
		if err != nil {
			return err
		}
		s := regionDrift{Region: string(d.Region), Home: home.Dir, NotRendered: []string{},
			NotApplied: local.UnappliedValues(d, home.Programs())}
		var tree *gitops.Declaration
		if s.Tree = findTree(*from, config); s.Tree != "" {
			if tree, s.NotRendered, err = readTree(s.Tree, *from, d); err != nil {
				return err
			}
		}
		if s.Drift, err = home.Drift(cmd.Context(), tree, d); err != nil {
			return err
		}
		err = o.Print(session.Out, s, s.print)
		if err == nil && len(s.Drift)+len(s.NotRendered) > 0 {
			return errDrift
		}
		return err
	}
	return cmd
}

// findTree returns the directory of the configuration: the named one, or config beside the rendered files if it is
// there, or "".
func findTree(from, named string) string {
	switch named {
	case "none":
		return ""
	case "":
		beside := filepath.Join(filepath.Dir(filepath.Clean(from)), "config")
		if info, err := os.Stat(beside); err != nil || !info.IsDir() {
			return ""
		}
		return beside
	}
	return named
}

// readTree returns the declaration of a rendered region in the tree of the configuration, nil when the tree does not
// declare the region, and the rendered files of the region that differ from a new rendering of the tree.
func readTree(dir, from string, rendered gitops.Declaration) (*gitops.Declaration, []string, error) {
	differences := []string{}
	fleet, err := gitops.Load(os.DirFS(dir), dir)
	if err != nil {
		return nil, nil, err
	}
	region, err := fleet.Region(string(rendered.Environment) + "/" + string(rendered.Region))
	if errors.Is(err, gitops.ErrNoRegion) {
		return nil, append(differences, err.Error()+"; remove its rendered files with `atoll config render`"), nil
	}
	if err != nil {
		return nil, nil, err
	}
	alone := gitops.Fleet{Environments: []gitops.Environment{{Name: region.Environment, Regions: []gitops.Region{region}}}}
	files, err := gitops.Render(alone)
	if err != nil {
		return nil, nil, err
	}
	below := filepath.Join(from, filepath.FromSlash(region.Dir()))
	if _, err := os.Stat(filepath.Join(below, "region.yaml")); errors.Is(err, fs.ErrNotExist) {
		below = from // the directory of the region itself
	}
	own := gitops.Files{}
	for name, data := range files {
		if path, err := filepath.Rel(region.Dir(), name); err == nil {
			own[path] = data
		}
	}
	changed, err := gitops.CompareTree(os.DirFS(below), own)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range changed {
		d.Path = filepath.Join(below, d.Path)
		differences = append(differences, d.FirstLine())
	}
	declared := gitops.Declare(region)
	return &declared, differences, nil
}

// print prints the differences, and then the declared values that have no effect on this machine.
func (s regionDrift) print(w io.Writer) {
	if len(s.Drift)+len(s.NotRendered) == 0 {
		fmt.Fprintf(w, "region %s is as declared (home %s)\n", s.Region, s.Home)
	}
	if len(s.Drift) > 0 {
		rows := [][]string{{"WHAT", "DECLARED", "RENDERED", "RUNNING"}}
		for _, x := range s.Drift {
			if s.Tree == "" {
				x.Declared = "-"
			}
			rows = append(rows, []string{x.What, cmp.Or(x.Declared, unset), cmp.Or(x.Rendered, unset),
				cmp.Or(x.Running, unset)})
		}
		terminal.Table(w, rows)
	}
	if len(s.NotRendered) > 0 {
		fmt.Fprintf(w, "\nNOT AS %s RENDERS\n", s.Tree)
		for _, text := range s.NotRendered {
			fmt.Fprintln(w, text)
		}
	}
	if s.Tree == "" {
		fmt.Fprintf(w, "without a tree of the configuration, the rendered files alone are compared (--config names one)\n")
	}
	if len(s.NotApplied) == 0 {
		return
	}
	rows := [][]string{{"NOT APPLIED HERE", "DECLARED", "SINCE"}}
	for _, v := range s.NotApplied {
		rows = append(rows, []string{v.What, v.Declared, v.Reason})
	}
	fmt.Fprintln(w)
	terminal.Table(w, rows)
}
