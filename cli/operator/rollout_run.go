package operator

import (
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/rollout"
)

func rolloutRun(session *terminal.Session) *cobra.Command {
	var interval time.Duration
	cmd := &cobra.Command{
		Use: "run FILE", Args: cobra.ExactArgs(1),
		Short: "Carry out a rollout, or continue it",
		Long: `Carries out the rollout of a file of the repository, until it ends or a gate stops
it. Each step is one commit on the branch of the remote: the edited configuration,
what is rendered of it, and the record of the rollout beside its file. The checkout
is not touched.

Stop it at any time and run it again, here or elsewhere: it continues from the
record. Several may run: the remote takes each step from one of them.

It fails when a gate stops the rollout, when the checkout has changes that are not
pushed, and when the history of the branch was rewritten.`,
		Example: `  atoll rollout run rollouts/atoll-1.5.0.yaml
  atoll rollout run rollouts/atoll-1.5.0.yaml --repo ~/platform --branch main -o json`,
	}
	b := addBranchFlags(cmd)
	o := terminal.AddOutputFlag(cmd)
	cmd.Flags().DurationVar(&interval, "interval", 30*time.Second, "time between two observations of the gates")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := b.driver(args[0])
		if err != nil {
			return err
		}
		head, err := b.branch.Head(cmd.Context())
		if err != nil {
			return err
		}
		if err := b.branch.CheckCheckout(cmd.Context(), head, d.File, d.Config); err != nil {
			return err
		}
		d.Interval = interval
		d.Show = func(e rollout.Event) {
			if printed, _ := o.PrintEvent(session.Out, e); !printed {
				session.Printf("%s  %s\n", e.At.Format(time.RFC3339), e.What)
			}
		}
		record, err := d.Run(cmd.Context())
		if err == nil && o.Format == "table" {
			session.Printf("%s: %d regions and %d management clusters were changed\n", record.State.Phase,
				record.Radius.Regions, record.Radius.Clusters)
		}
		return err
	}
	return cmd
}
