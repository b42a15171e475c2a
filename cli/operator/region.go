package operator

import (
	"context"
	"errors"
	"path"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"atoll.dev/cli/terminal"
	"atoll.dev/gitops"
	"atoll.dev/local"
)

// Region is the command of regions on this machine that are declared in Git.
func Region(session *terminal.Session) *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use: "region", Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "Regions on this machine as declared in Git: apply, status, watch, backups, restore",
		Long: `Starts a region on this machine from the files that "atoll config render" wrote for it.
Each region has a home of its own: --home, or HOME-regions/REGION beside the default home, or
HOME-regions/ENVIRONMENT.REGION where another environment has a region of the same name.`,
		Example: `  atoll config render && atoll region apply eu-west-1
  atoll region status eu-west-1`,
	}
	cmd.PersistentFlags().StringVar(&from, "from", "deploy", "directory of the rendered files")
	cmd.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "rendered" { // its earlier name
			name = "from"
		}
		return pflag.NormalizedName(name)
	})
	cmd.AddCommand(regionApply(session, &from), regionStatus(session, &from), regionWatch(session, &from),
		regionRestore(session), regionBackups())
	return cmd
}

// declaredRegion returns the declaration of a region and its home.
func declaredRegion(session *terminal.Session, from, region string) (gitops.Declaration, local.Home, error) {
	d, err := local.ReadDeclaration(from, region)
	if err != nil {
		return d, local.Home{}, err
	}
	home, err := regionHome(session, string(d.Environment), string(d.Region))
	return d, home, err
}

// regionHome returns the home of a declared region: HOME-regions/REGION, unless that holds the region of another
// environment; then it is HOME-regions/ENVIRONMENT.REGION, and stays so. Without an environment it is the first.
func regionHome(session *terminal.Session, environment, region string) (local.Home, error) {
	if session.HomeIsGiven {
		return local.OpenHome(session.HomeDir)
	}
	all := session.HomeDir + "-regions"
	plain, err := local.OpenHome(path.Join(all, region))
	if err != nil || environment == "" {
		return plain, err
	}
	own, err := local.OpenHome(path.Join(all, environment+"."+region))
	if err != nil {
		return own, err
	}
	if _, err := own.State(); !errors.Is(err, local.ErrNoRegion) {
		return own, err
	}
	if st, err := plain.State(); err == nil && st.Environment != "" && st.Environment != environment {
		return own, nil
	}
	return plain, nil
}

// applyRegion brings a region up as it is declared, and prints each stage. programs is a directory of programs; "" is
// that of the home.
func applyRegion(ctx context.Context, session *terminal.Session, home local.Home, d gitops.Declaration,
	programs string) error {
	return home.Apply(ctx, d, local.ApplyOptions{Programs: programs, Show: func(e local.Event) {
		if e.Error == "" && e.Stage != "region" {
			session.Printf("  %-32s %8s  %s\n", e.Stage, terminal.FormatDuration(e.Took), e.Detail)
		}
	}, Removed: func(name string) { session.Printf("  %-32s removed\n", name) }})
}

// programsFlag adds the flag --programs to a command that applies declarations. It returns a function that returns the
// named directory.
func programsFlag(cmd *cobra.Command) func() (string, error) {
	var dir string
	cmd.Flags().StringVar(&dir, "programs", "",
		"directory with VERSION/atoll and VERSION/atoll-kube of each version that the region may run besides this "+
			"program's (default: that of an earlier apply)")
	return func() (string, error) {
		if dir == "" {
			return "", nil
		}
		return local.ProgramsDir(dir)
	}
}

func regionApply(session *terminal.Session, from *string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "apply REGION", Args: cobra.ExactArgs(1),
		Short: "Start a region as Git declares it, or change a running one until it is as declared",
		Long: `Starts the region. In a running one it replaces each process whose settings have changed
(version, replicas, releases, traces, log level, limits), one after another, and adds,
labels, limits, cordons, uncordons and removes management clusters until they are as
declared. It refuses to remove a management cluster that hosts clusters. The region runs
on when the command ends. "atoll region status" shows which declared values have no
effect on one machine.

versions.atoll chooses the programs of the region: this one when it has the version,
else those in the directory that --programs names, which the home remembers. A version
that is missing there, or is older than the region's databases, is an error before
anything changes.`,
		Example: `  atoll config render && atoll region apply eu-west-1
  atoll region apply eu-west-1 --programs ~/atoll-versions    # has 1.4.2/atoll, 1.4.2/atoll-kube, 1.5.0/...
  atoll region apply production/us-east-1 --from examples/deploy --home /tmp/us-east-1`,
	}
	programs := programsFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dir, err := programs()
		if err != nil {
			return err
		}
		d, home, err := declaredRegion(session, *from, args[0])
		if err != nil {
			return err
		}
		if err := applyRegion(cmd.Context(), session, home, d, dir); err != nil {
			return err
		}
		session.Printf("region %s is as declared (home %s)\n", d.Region, home.Dir)
		if n := len(local.UnappliedValues(d, home.Programs())); n > 0 {
			session.Printf("declared values without effect on this machine: %d; `atoll region status` shows them\n", n)
		}
		return nil
	}
	return cmd
}
