package services

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/adapter"
	"atoll.dev/cli/terminal"
)

func adapterLint(c *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Check adapter and task configs without running them",
		Long: `Checks the structure, names, types, expressions, templates, calls and manifests of
AdapterConfig and AdapterTaskConfig files, and shows everything that is wrong with
its file and line. A task config is checked against the adapter config beside it.

It fails when something is wrong; warnings alone are no failure.`,
		Example: `  atoll adapter lint adapters/cl-namespace/config.yaml adapters/cl-namespace/task.yaml`,
		Args:    cobra.MinimumNArgs(1),
	}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		found := adapter.LintFiles(args...)
		if found == nil {
			found = adapter.Findings{}
		}
		if err := o.Print(c.Out, found, func(w io.Writer) {
			for _, f := range found {
				fmt.Fprintln(w, f)
			}
		}); err != nil {
			return err
		}
		if n := len(found.Errors()); n > 0 {
			return fmt.Errorf("the configs are wrong in %d places", n)
		}
		return nil
	}
	return cmd
}
