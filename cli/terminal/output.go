package terminal

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// Output is the flag -o: the format in which a command prints its result.
type Output struct {
	Format  string
	formats []string // that the command supports
}

// AddOutputFlag gives cmd the flag -o with the formats table, json and yaml, and more.
func AddOutputFlag(cmd *cobra.Command, more ...string) *Output {
	o := &Output{Format: "table", formats: append([]string{"table", "json", "yaml"}, more...)}
	cmd.Flags().VarP(o, "output", "o", o.choices())
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(o.formats, cobra.ShellCompDirectiveNoFileComp))
	return o
}

func (o *Output) choices() string {
	last := len(o.formats) - 1
	return strings.Join(o.formats[:last], ", ") + " or " + o.formats[last]
}

func (o *Output) String() string { return o.Format }
func (o *Output) Type() string   { return "format" }
func (o *Output) Set(s string) error {
	if !slices.Contains(o.formats, s) {
		return fmt.Errorf("use %s", o.choices())
	}
	o.Format = s
	return nil
}

// Print writes v as JSON or YAML, or calls table in any other format.
func (o *Output) Print(w io.Writer, v any, table func(w io.Writer)) error {
	switch o.Format {
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

// PrintEvent writes one event of a stream: a line of JSON, or a YAML document. It returns false, and
// writes nothing, for the other formats: these are the command's own.
func (o *Output) PrintEvent(w io.Writer, event any) (printed bool, err error) {
	switch o.Format {
	case "json":
		line, err := json.Marshal(event)
		if err == nil {
			_, err = w.Write(append(line, '\n'))
		}
		return true, err
	case "yaml":
		text, err := yaml.Marshal(event)
		if err == nil {
			_, err = fmt.Fprintf(w, "---\n%s", text)
		}
		return true, err
	}
	return false, nil
}

// Width is the number of columns of a table.
type Width uint8

// Widths of tables.
const (
	Narrow Width = iota
	Wide         // with the columns of -o wide
)

// Width returns the width of the tables of the chosen format.
func (o *Output) Width() Width {
	if o.Format == "wide" {
		return Wide
	}
	return Narrow
}

// Table writes rows in aligned columns; the first row is the heading.
func Table(w io.Writer, rows [][]string) {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = OneLine(cell)
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	tw.Flush()
}

// OneLine makes a foreign text, such as the message of a condition, safe to print in one line: it
// replaces control characters, line separators and bidirectional controls by spaces.
func OneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp, unicode.Bidi_Control) {
			return ' '
		}
		return r
	}, text)
}

// FormatDuration returns a duration rounded to about three digits.
func FormatDuration(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	default:
		return d.Round(10 * time.Millisecond).String()
	}
}

// FormatAge returns the time from t to now in one unit: seconds, minutes, hours or days. It returns
// "never" for the zero time.
func FormatAge(t, now time.Time) string {
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

// Megabytes returns a size in MB, "-" for 0.
func Megabytes(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%d MB", bytes/1_000_000)
}

// Progress returns the stream for progress messages: standard error when standard output has a
// format that programs read.
func (o *Output) Progress(session *Session) io.Writer {
	if o.Format != "table" {
		return session.Err
	}
	return session.Out
}

// PrintNamed prints v as JSON or YAML, or the names for -o name.
func (o *Output) PrintNamed(w io.Writer, v any, names ...string) error {
	if o.Format == "name" {
		for _, n := range names {
			if _, err := fmt.Fprintln(w, n); err != nil {
				return err
			}
		}
		return nil
	}
	return o.Print(w, v, func(io.Writer) {})
}

// LabelText returns labels as k=v pairs, sorted and separated by commas.
func LabelText(labels map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, k+"="+labels[k])
	}
	return strings.Join(parts, ",")
}

// DashIfEmpty returns text, or "-" for an empty text.
func DashIfEmpty(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
