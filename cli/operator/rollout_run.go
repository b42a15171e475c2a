package operator

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/rollout"
)

func rolloutRun(session *terminal.Session) *cobra.Command {
	var interval time.Duration
	var caFile string
	cmd := &cobra.Command{
		Use: "run FILE", Args: cobra.ExactArgs(1),
		Short: "Carry out a rollout, or continue it",
		Long: `Carries out the rollout of a file of the repository, until it ends or a gate stops
it. Each step is one commit on the branch of the remote: the edited configuration,
the files rendered from it, and the record of the rollout beside its file. The checkout
is not touched.

You may stop it at any time and run it again, here or on another machine: it continues
from the record. Several may run at once: the remote accepts each step from one of them.

It fails when a gate stops the rollout, when the rollout was aborted or reverted (also
by onFailure: revert), when the checkout has changes that are not pushed, and when the
history of the branch was rewritten.`,
		Example: `  atoll rollout run rollouts/atoll-1.5.0.yaml
  atoll rollout run rollouts/atoll-1.5.0.yaml --repo ~/platform --branch main -o json
  atoll rollout run rollouts/local.yaml --ca ~/.local/share/atoll-regions/production/eu-west-1/ca.pem`,
	}
	b := addBranchFlags(cmd)
	o := terminal.AddOutputFlag(cmd)
	cmd.Flags().DurationVar(&interval, "interval", 30*time.Second, "time between two observations of the gates")
	cmd.Flags().StringVar(&caFile, "ca", "", "certificates of CAs (PEM) that gates trust besides those of the system")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := b.driver(args[0])
		if err != nil {
			return err
		}
		if d.Health, err = gatesOf(caFile); err != nil {
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

// gatesOf returns the reader of gates. Its client trusts the CAs of the system, and those of a file if one is named.
func gatesOf(caFile string) (rollout.Gates, error) {
	if caFile == "" {
		return rollout.Gates{}, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return rollout.Gates{}, fmt.Errorf("reading the CAs of the gates: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return rollout.Gates{}, fmt.Errorf("reading the CAs of the system: %w", err)
	}
	if !pool.AppendCertsFromPEM(pem) {
		return rollout.Gates{}, fmt.Errorf("--ca: %s has no PEM certificate", caFile)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
	return rollout.Gates{Client: &http.Client{Transport: transport}}, nil
}
