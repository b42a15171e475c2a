package operator

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"atoll.dev/cli/services"
	"atoll.dev/cli/terminal"
	"atoll.dev/maestro/original"
)

func maestroImport(session *terminal.Session) *cobra.Command {
	o := original.Options{}
	cmd := &cobra.Command{
		Use: "import", Short: "Import the database of openshift-online/maestro", Args: cobra.NoArgs,
		Long: `Copies consumers and resource bundles from the database of openshift-online/maestro, with
their versions: agents that connect to this server afterwards have their works already, and
apply nothing again. The deletion of a bundle goes on. Stop the other server first, so that
nothing changes during the import.

It may be stopped and run again: existing rows stay as they are. It refuses rows that
it cannot read, with the reason, and imports the others; the command fails then.`,
		Example: `  atoll maestro import --from postgres://maestro@old/maestro --dsn postgres://maestro@new/maestro
  atoll maestro import --from-file their-database.txt --dsn postgres://maestro@new/maestro`,
	}
	out := terminal.AddOutputFlag(cmd)
	from := terminal.AddDatabaseFlags(cmd, "from", "PostgreSQL database to read")
	to := terminal.AddDatabaseFlags(cmd, "dsn", "PostgreSQL database of Maestro alone")
	var keys services.EnvelopeFlags
	keys.Add(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.Progress = func(r original.Report) {
			fmt.Fprintf(cmd.ErrOrStderr(), "%d consumers, %d bundles read; %d refused\n", r.Consumers.Read,
				r.Bundles.Read, r.Consumers.Refused+r.Bundles.Refused)
		}
		var err error
		if o.From, err = from.Read(); err != nil {
			return err
		}
		if o.To, err = to.Read(); err != nil {
			return err
		}
		envelope, err := keys.Open(cmd.Context())
		if err != nil {
			return err
		}
		defer envelope.Close()
		o.Envelope = envelope.KMS
		report, err := original.Import(cmd.Context(), o)
		if err != nil {
			return err
		}
		err = out.Print(cmd.OutOrStdout(), report, func(w io.Writer) {
			rows := [][]string{{"TABLE", "READ", "IMPORTED", "PRESENT", "REFUSED", "DELETING"}}
			for _, t := range []struct {
				name string
				original.Count
			}{{"consumers", report.Consumers}, {"resources", report.Bundles}} {
				row := []string{t.name}
				for _, n := range []int{t.Read, t.Imported, t.Present, t.Refused, t.Deleting} {
					row = append(row, fmt.Sprint(n))
				}
				rows = append(rows, row)
			}
			terminal.Table(w, rows)
			for _, r := range report.Refused {
				fmt.Fprintf(w, "refused: %s %s: %s\n", r.Table, r.ID, r.Reason)
			}
			for _, r := range report.Notes {
				fmt.Fprintf(w, "note: %s %s: %s\n", r.Table, r.ID, r.Reason)
			}
		})
		if n := report.Consumers.Refused + report.Bundles.Refused; err == nil && n > 0 {
			err = fmt.Errorf("%d rows were refused; the others are imported", n)
		}
		return err
	}
	cmd.Flags().IntVar(&o.Batch, "batch", 200, "rows of a transaction")
	return cmd
}
