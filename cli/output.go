package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// output is the -o flag: how a command prints what it found.
type output struct {
	format  string
	formats []string // that the command has
}

// addOutput gives cmd the flag -o, with more formats than table, json and yaml
// for tables of another sort.
func addOutput(cmd *cobra.Command, more ...string) *output {
	o := &output{format: "table", formats: append([]string{"table", "json", "yaml"}, more...)}
	cmd.Flags().VarP(o, "output", "o", o.choices())
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(o.formats, cobra.ShellCompDirectiveNoFileComp))
	return o
}

func (o *output) choices() string {
	last := len(o.formats) - 1
	return strings.Join(o.formats[:last], ", ") + " or " + o.formats[last]
}

func (o *output) String() string { return o.format }
func (o *output) Type() string   { return "format" }
func (o *output) Set(s string) error {
	if !slices.Contains(o.formats, s) {
		return fmt.Errorf("use %s", o.choices())
	}
	o.format = s
	return nil
}

// print writes v as JSON or YAML, or calls table for people.
func (o *output) print(w io.Writer, v any, table func(w io.Writer)) error {
	switch o.format {
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	case "yaml":
		data, err := yaml.Marshal(v)
		if err == nil {
			_, err = w.Write(data)
		}
		return err
	}
	table(w)
	return nil
}

// table writes rows in aligned columns; the first is the heading.
func table(w io.Writer, rows [][]string) {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = oneLine(cell)
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	tw.Flush()
}

// oneLine is a text of somebody else's, such as the message of a condition,
// without what would break a line, or what a terminal obeys.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp, unicode.Bidi_Control) {
			return ' '
		}
		return r
	}, text)
}

// took shows a duration to three digits.
func took(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	default:
		return d.Round(10 * time.Millisecond).String()
	}
}

// ago shows how long something is past, coarsely.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	d := now.Sub(t)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(max(d, 0).Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func megabytes(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%d MB", bytes/1_000_000)
}

// progress is where a command says what it does: not among what a program
// reads.
func (o *output) progress(c *command) io.Writer {
	if o.format != "table" {
		return c.err
	}
	return c.out
}

// printNamed prints v as JSON or YAML, or the names for -o name.
func (o *output) printNamed(w io.Writer, v any, names ...string) error {
	if o.format == "name" {
		for _, n := range names {
			if _, err := fmt.Fprintln(w, n); err != nil {
				return err
			}
		}
		return nil
	}
	return o.print(w, v, func(io.Writer) {})
}
