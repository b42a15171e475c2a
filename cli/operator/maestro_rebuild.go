package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client/maestroclient"
	"atoll.dev/recovery"
)

func maestroRebuild(session *terminal.Session) *cobra.Command {
	timeout := 10 * time.Minute
	var lifecycleURL, stateFile string
	cmd := &cobra.Command{
		Use:   "rebuild",
		Short: "Restore Maestro's lost database from the lifecycle manager",
		Long: `Restores the content of Maestro's database after its loss: the consumers from the lifecycle
manager's ManagementClusters, and the works by making all adapters handle all of their
resources again. The adapters order the same works under the same ids, and the agents have
these works already, so nothing on a management cluster is deleted or created again.
Deletions that were in progress go on.

It waits until every resource was handled and is as reconciled as before, shows the
resources that it waits for, and lists works that agents hold and no source has ordered
again. It changes no existing record and may be stopped and run again at any time. Until it is
complete it keeps the state before the loss in a file: a later run continues with that
state. To compare with the present state instead, delete the file.`,
		Example: `  atoll maestro rebuild
  atoll maestro rebuild --timeout 1h -o json`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait")
	cmd.Flags().StringVar(&lifecycleURL, "clm-endpoint", "", "with --endpoint: URL of CLM's REST API")
	cmd.Flags().StringVar(&stateFile, "state", "", "file that keeps the state before the loss until the rebuild is\n"+
		"complete (default: maestro-rebuild.json in the home; none with --endpoint)")
	o := addMaestroFlags(cmd)
	cmd.MarkFlagsRequiredTogether("endpoint", "clm-endpoint")
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if stateFile == "" && o.endpoint == "" {
			home, err := session.Home()
			if err != nil {
				return err
			}
			stateFile = home.Path("maestro-rebuild.json")
		}
		toCLM := *o
		toCLM.service, toCLM.endpoint = "clm", lifecycleURL
		return callMaestro(session, cmd.Context(), o, func(ctx context.Context, m *maestroclient.Client) error {
			return callCLM(session, ctx, &clmFlags{operatorFlags: &toCLM}, func(ctx context.Context,
				l *clmConnection) error {
				progress := &rebuildProgress{out: cmd.ErrOrStderr()}
				report, err := recovery.Rebuild(ctx, recovery.Options{Maestro: m, CLM: l.Client, Timeout: timeout,
					StateFile: stateFile, Continued: progress.showContinued,
					ConsumersRestored: progress.showConsumers, Compared: progress.showResources})
				if err != nil && !errors.Is(err, recovery.ErrTimeout) {
					return err
				}
				table := func(w io.Writer) { rebuildTable(w, report, time.Now()) }
				if err := out.Print(session.Out, report, table); err != nil {
					return err
				}
				if err != nil {
					return fmt.Errorf(
						"not complete after %s: it still waits for %d resources and agents; run it again to go on", timeout,
						len(report.Waiting))
				}
				return nil
			})
		})
	}
	return cmd
}

// rebuildProgress prints one line for each change of the progress of a rebuild.
type rebuildProgress struct {
	out      io.Writer
	lastLine string
}

func (p *rebuildProgress) showContinued(begun time.Time) {
	fmt.Fprintf(p.out, "continues the rebuild that began %s ago, with the state before it\n",
		terminal.FormatAge(begun, time.Now()))
}

func (p *rebuildProgress) showConsumers(r recovery.Report) {
	fmt.Fprintf(p.out, "%d consumers, %d of them made now\n", r.Consumers.Known, r.Consumers.Created)
}

func (p *rebuildProgress) showResources(r recovery.Report, since time.Duration) {
	line := fmt.Sprintf("resources: %d of %d handled; works: %d of %d restored", r.Resources.Restored,
		r.Resources.Known,
		r.Works.Present, r.Works.Present+r.Works.Unknown)
	if n := len(r.Waiting); n > 0 {
		w := r.Waiting[0]
		line += fmt.Sprintf("; waiting for %d, such as %s %s: %s", n, w.Kind, w.Name, terminal.OneLine(w.What))
	}
	if line != p.lastLine {
		p.lastLine = line
		fmt.Fprintf(p.out, "  %8s  %s\n", terminal.FormatDuration(since), line)
	}
}

// rebuildTable prints the result of a rebuild, or the resources and agents that it still waits for.
func rebuildTable(w io.Writer, r recovery.Report, now time.Time) {
	if len(r.Waiting) > 0 {
		rows := [][]string{{"WAITING FOR", "NAME", "ID", "WHY"}}
		for _, wait := range r.Waiting {
			rows = append(rows, []string{wait.Kind, wait.Name, cmp.Or(wait.ID, "-"), wait.What})
		}
		terminal.Table(w, rows)
		fmt.Fprintln(w, "to see why a resource waits: atoll clm why ID; the state of the agents: atoll mc list")
	}
	if !r.Done {
		return
	}
	fmt.Fprintf(w, "restored: %d consumers, %d works; %d resources were handled\n", r.Consumers.Known,
		r.Works.Present, r.Resources.Restored)
	if len(r.Unknown) == 0 {
		return
	}
	fmt.Fprintf(w, "\nAgents hold %d works that no source has ordered again; they stay applied:\n", len(r.Unknown))
	unknownTable(w, r.Unknown, now)
	u := r.Unknown[0]
	fmt.Fprintf(w, `If a source still needs a work: atoll maestro unknown adopt %[1]s %[2]s --source SOURCE
If no source needs it:          atoll maestro unknown delete %[1]s %[2]s --reason WHY
`, u.ConsumerName, u.ID)
}
