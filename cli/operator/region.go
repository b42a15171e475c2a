package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/gitops"
	"atoll.dev/local"
)

// errDrift is the error of `region status` when something differs.
var errDrift = errors.New("the region differs from its declaration: run `atoll region apply`")

// Region is the command of regions on this machine that are declared in Git.
func Region(session *terminal.Session) *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use: "region", Args: terminal.RefuseUnknownVerb, RunE: terminal.ShowHelp,
		Short: "A region on this machine as its declaration in Git says",
		Long: `Brings up a region on this machine from what "atoll config render" wrote for it. Each
region has a home of its own: --home, or HOME-regions/REGION beside the default home.`,
	}
	cmd.PersistentFlags().StringVar(&from, "rendered", "deploy", "directory of the rendered files")
	cmd.AddCommand(regionApply(session, &from), regionStatus(session, &from), regionWatch(session, &from))
	return cmd
}

// declaredRegion returns the declaration of a region and its home.
func declaredRegion(session *terminal.Session, from, region string) (gitops.Declaration, local.Home, error) {
	d, err := local.ReadDeclaration(from, region)
	if err != nil {
		return d, local.Home{}, err
	}
	home, err := regionHome(session, string(d.Region))
	return d, home, err
}

// regionHome returns the home of a declared region.
func regionHome(session *terminal.Session, region string) (local.Home, error) {
	dir := session.HomeDir
	if !session.HomeIsGiven {
		dir = path.Join(dir+"-regions", region)
	}
	return local.OpenHome(dir)
}

// applyRegion brings a region up as it is declared, and prints each stage.
func applyRegion(ctx context.Context, session *terminal.Session, home local.Home, d gitops.Declaration) error {
	return home.Apply(ctx, d, func(e local.Event) {
		if e.Error == "" && e.Stage != "region" {
			session.Printf("  %-32s %8s  %s\n", e.Stage, terminal.Took(e.Took), e.Detail)
		}
	}, func(name string) { session.Printf("  %-32s removed\n", name) })
}

func regionApply(session *terminal.Session, from *string) *cobra.Command {
	return &cobra.Command{
		Use: "apply REGION", Args: cobra.ExactArgs(1),
		Short: "Bring a region up as it is declared, or change it until it is so",
		Long: `Starts the region, and adds, cordons, uncordons and removes management clusters until
they are as declared. It refuses to remove a management cluster that hosts clusters.
The region goes on when the command ends. The capacity of a local management cluster
is its share of this machine, whatever is declared.`,
		Example: `  atoll config render && atoll region apply eu-west-1
  atoll region apply production/us-east-1 --rendered examples/deploy --home /tmp/us-east-1`,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, home, err := declaredRegion(session, *from, args[0])
			if err != nil {
				return err
			}
			if err := applyRegion(cmd.Context(), session, home, d); err != nil {
				return err
			}
			session.Printf("region %s is as declared (home %s)\n", d.Region, home.Dir)
			return nil
		},
	}
}

// regionDrift is the output of `region status`.
type regionDrift struct {
	Region string        `json:"region"`
	Home   string        `json:"home"`
	Drift  []local.Drift `json:"drift"`
}

func regionStatus(session *terminal.Session, from *string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status REGION", Args: cobra.ExactArgs(1),
		Short: "Compare what is declared with what runs; fails when they differ",
		Example: `  atoll region status eu-west-1
  atoll region status eu-west-1 -o json | jq .drift`,
	}
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d, home, err := declaredRegion(session, *from, args[0])
		if err != nil {
			return err
		}
		drift, err := home.Drift(cmd.Context(), d)
		if err != nil {
			return err
		}
		err = o.Print(session.Out, regionDrift{string(d.Region), home.Dir, drift}, func(w io.Writer) {
			rows := [][]string{{"WHAT", "DECLARED", "RUNNING"}}
			for _, x := range drift {
				rows = append(rows, []string{x.What, x.Declared, x.Running})
			}
			if len(drift) > 0 {
				terminal.Table(w, rows)
				return
			}
			fmt.Fprintf(w, "region %s is as declared (home %s)\n", d.Region, home.Dir)
		})
		if err == nil && len(drift) > 0 {
			return errDrift
		}
		return err
	}
	return cmd
}
