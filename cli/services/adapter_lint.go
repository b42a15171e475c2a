package services

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/adapter"
	"atoll.dev/cli/terminal"
)

func adapterLint(session *terminal.Session) *cobra.Command {
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
		findings := adapter.LintFiles(args...)
		if findings == nil {
			findings = adapter.Findings{}
		}
		if err := o.Print(session.Out, findings, func(w io.Writer) {
			for _, f := range findings {
				fmt.Fprintln(w, f)
			}
		}); err != nil {
			return err
		}
		if n := len(findings.Errors()); n > 0 {
			return fmt.Errorf("the configs are wrong in %d places", n)
		}
		return nil
	}
	return cmd
}
