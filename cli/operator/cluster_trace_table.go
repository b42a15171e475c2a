package operator

import (
	"fmt"
	"io"
	"time"

	"atoll.dev/cli/terminal"
)

// traceTables prints a trace as text.
func traceTables(out io.Writer, t trace, now time.Time) {
	fmt.Fprintf(out, "cluster %s (%s) of account %s", t.Name, t.ID, terminal.DashIfEmpty(t.Account))
	if t.ManagementCluster != "" {
		fmt.Fprintf(out, " on %s", t.ManagementCluster)
	}
	fmt.Fprintln(out)
	if t.Azure != "" {
		fmt.Fprintln(out, terminal.OneLine(t.Azure))
	}
	fmt.Fprintln(out)
	rows := [][]string{{"", "HOP", "STATE", "SINCE", "DETAIL"}}
	for _, h := range t.Hops {
		mark, since := "", "-"
		if h.Hop == t.WaitsAt && h.State != hopDone {
			mark = ">"
		}
		if h.Since != nil {
			since = terminal.FormatAge(*h.Since, now)
		}
		rows = append(rows, []string{mark, h.Hop, string(h.State), since, h.Detail})
	}
	terminal.Table(out, rows)
	if t.WaitsAt != "" {
		fmt.Fprintf(out, "\nit waits at: %s\n", t.WaitsAt)
	}
	rows = [][]string{{"TIME", "AFTER", "HOP", "EVENT", "DETAIL"}}
	for i, e := range t.Events {
		after := ""
		if i > 0 {
			after = "+" + terminal.FormatDuration(max(e.Time.Sub(t.Events[i-1].Time), 0))
		}
		rows = append(rows, []string{e.Time.Local().Format("2006-01-02 15:04:05.000"), after, e.Hop, e.Event, e.Detail})
	}
	fmt.Fprintln(out)
	terminal.Table(out, rows)
}
