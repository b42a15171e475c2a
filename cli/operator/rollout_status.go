package operator

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/rollout"
)

func rolloutStatus(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status FILE", Args: cobra.ExactArgs(1),
		Short: "Show how far a rollout has come, and what it has changed",
		Example: `  atoll rollout status rollouts/atoll-1.5.0.yaml
  atoll rollout status rollouts/atoll-1.5.0.yaml -o json | jq .radius`,
	}
	b := addBranchFlags(cmd)
	o := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := b.driver(args[0])
		if err != nil {
			return err
		}
		record, err := d.Status(cmd.Context())
		if err != nil {
			return err
		}
		return o.Print(session.Out, record, func(w io.Writer) { printRecord(w, record) })
	}
	return cmd
}

// printRecord prints the state of a rollout, its waves and its latest events as text.
func printRecord(w io.Writer, r rollout.Recorded) {
	fmt.Fprintf(w, "%s", r.State.Phase)
	if r.State.Reason != "" {
		fmt.Fprintf(w, ": %s", terminal.OneLine(r.State.Reason))
	}
	fmt.Fprintf(w, "\n%d regions and %d management clusters have been changed; in flight: %d\n\n", r.Radius.Regions,
		r.Radius.Clusters, len(r.InFlight()))
	rows := [][]string{{"SECTOR", "WAVE", "TARGETS", "CHANGED", "HEALTHY", "SOAK"}}
	for i, wave := range r.Waves {
		changed, healthy := 0, 0
		for _, t := range wave.Targets {
			if s, has := r.State.Targets[t]; has {
				changed++
				if !s.Healthy.IsZero() {
					healthy++
				}
			}
		}
		soak := time.Duration(wave.Soak).String()
		if i == r.State.Wave {
			soak = fmt.Sprintf("%s of %s", time.Duration(r.State.Soaked), soak)
		}
		rows = append(rows, []string{wave.Sector, wave.Name, fmt.Sprint(len(wave.Targets)), fmt.Sprint(changed),
			fmt.Sprint(healthy), soak})
	}
	terminal.Table(w, rows)
	for _, key := range r.Kept {
		fmt.Fprintf(w, "\nnot reverted, since somebody has set or removed it: %s", key)
	}
	for _, text := range r.Unchecked {
		fmt.Fprintf(w, "\n%s", terminal.OneLine(text))
	}
	fmt.Fprintln(w)
	for _, e := range r.History[max(0, len(r.History)-10):] {
		fmt.Fprintf(w, "%s  %s\n", e.At.Format(time.RFC3339), terminal.OneLine(e.What))
	}
}
