package customer

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"atoll.dev/cli/terminal"
)

// clusterStages are the stages of a cluster's way, in their order. They are
// those of the Platform API's events.
var clusterStages = []string{"Accepted", "Placed", "Ordered", "PlaneStarting", "APIServing", "Ready", stageNodes}

// stageNodes is reached by clusters with node pools only.
const stageNodes = "NodesReady"

// timeline is how far a cluster has come. It is told what happened and draws
// it; it looks at no clock.
type timeline struct {
	name, phase string
	begun       time.Time // when the region accepted it
	nodes       bool      // it has node pools, so NodesReady is awaited
	reached     map[string]arrival
	waits       string // why the first stage that is not reached is not; "" when nothing is known
}

// arrival is when a stage was reached, and what is to be said of it.
type arrival struct {
	at   time.Time
	note string
}

// reach notes that a stage was reached. The first time counts: what is lost
// and regained is the cluster's later life. It says whether that is news.
func (t *timeline) reach(stage string, at time.Time, note string) bool {
	if t.reached == nil {
		t.reached = map[string]arrival{}
	}
	if _, known := t.reached[stage]; known || !slices.Contains(clusterStages, stage) {
		return false
	}
	t.reached[stage] = arrival{at, note}
	if t.begun.IsZero() || at.Before(t.begun) {
		t.begun = at
	}
	return true
}

// awaited are the stages that this cluster has.
func (t *timeline) awaited() []string {
	if _, seen := t.reached[stageNodes]; t.nodes || seen {
		return clusterStages
	}
	return clusterStages[:len(clusterStages)-1]
}

// done says whether every stage was reached.
func (t *timeline) done() bool {
	stages := t.awaited()
	return t.present() == len(stages)
}

// present is the index of the stage that is under way: the one after the last
// that was reached.
func (t *timeline) present() int {
	stages := t.awaited()
	for i := len(stages) - 1; i >= 0; i-- {
		if _, ok := t.reached[stages[i]]; ok {
			return i + 1
		}
	}
	return 0
}

// span is when a stage began and ended. One that is under way ends now. A
// stage that was not seen, though a later one was, has no span.
func (t *timeline) span(i int, now time.Time) (from, to time.Time, ok bool) {
	stages := t.awaited()
	from = t.begun
	for _, s := range stages[:i] {
		if a, ok := t.reached[s]; ok && a.at.After(from) {
			from = a.at
		}
	}
	a, ok := t.reached[stages[i]]
	switch {
	case ok:
		to = a.at
	case i == t.present():
		to = now
	default:
		return from, from, false
	}
	if to.Before(from) { // two clocks, or two conditions in one report
		to = from
	}
	return from, to, true
}

// end is how far the timeline reaches.
func (t *timeline) end(now time.Time) time.Time {
	if !t.done() {
		return now
	}
	last := t.begun
	for _, a := range t.reached {
		if a.at.After(last) {
			last = a.at
		}
	}
	return last
}

// canvas is what a timeline is drawn on.
type canvas struct {
	width  int // in cells
	colour bool
	ascii  bool // the terminal is not known to show more
	tick   int  // of the animation
}

// Escape sequences of a terminal's colours.
const (
	plain  = "\x1b[0m"
	bold   = "\x1b[1m"
	faint  = "\x1b[2m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
)

func (c canvas) paint(colour, text string) string {
	if !c.colour || text == "" {
		return text
	}
	return colour + text + plain
}

var (
	spinner      = []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}
	asciiSpinner = []string{"|", "/", "-", `\`}
)

// marks are the signs of a stage that was reached, is under way, or is to come.
func (c canvas) marks() (done, moving, later string) {
	if c.ascii {
		return "x", asciiSpinner[c.tick%len(asciiSpinner)], "."
	}
	return "✓", spinner[c.tick%len(spinner)], "·"
}

// The widths of the columns, in cells.
const (
	stageColumn = 13 // the longest stage's name
	tookColumn  = 7
	fixedCells  = 2 + 1 + 1 + stageColumn + 2 + tookColumn + 2 // up to the bar
)

// bar is how wide the bars are: none where they would leave no room for notes.
func (c canvas) bar() int {
	switch {
	case c.width >= 100:
		return 24
	case c.width >= 70:
		return 12
	}
	return 0
}

// draw returns the lines of the timeline at a time. No line is wider than the
// canvas.
func (t *timeline) draw(c canvas, now time.Time) []string {
	end := t.end(now)
	total := max(end.Sub(t.begun), 0)
	title := terminal.OneLine(t.name)
	rest := fmt.Sprintf("  %s  %s", t.phase, terminal.Took(total))
	title = cut(title, max(c.width-cells(rest), 8))
	lines := []string{c.paint(bold, title) + cut(rest, c.width-cells(title)), ""}
	done, moving, later := c.marks()
	present := t.present()
	for i, stage := range t.awaited() {
		from, to, ok := t.span(i, now)
		duration, bar, note := "", "", t.reached[stage].note
		if ok {
			duration = terminal.Took(to.Sub(from))
			bar = c.drawBar(from.Sub(t.begun), to.Sub(t.begun), total)
		}
		mark, colour := done, green
		switch {
		case i == present:
			mark, colour, note = moving, yellow, t.waits
			if t.phase == "Failed" {
				colour = red
			}
		case i > present:
			mark, colour = later, faint
		}
		head := fmt.Sprintf(" %-*s  %*s  ", stageColumn, stage, tookColumn, duration)
		if i > present {
			head = " " + stage
		}
		body := ""
		if width := c.bar(); width > 0 && bar+note != "" {
			body = c.paint(colour, bar) + strings.Repeat(" ", width-cells(bar)+1)
		}
		room := c.width - fixedCells
		if c.bar() > 0 {
			room -= c.bar() + 1
		}
		lines = append(lines, strings.TrimRight("  "+c.paint(colour, mark)+head+body+c.paint(
			faint, cut(terminal.OneLine(note), room)), " "))
	}
	for i, l := range lines {
		if !c.colour {
			lines[i] = cut(l, c.width)
		}
	}
	return lines
}

// drawBar draws from when to when of the whole something took.
func (c canvas) drawBar(from, to, total time.Duration) string {
	width := c.bar()
	if width == 0 || total <= 0 {
		return ""
	}
	at := func(d time.Duration) float64 { return float64(d) / float64(total) * float64(width) }
	begin := min(int(at(from)), width-1)
	length := int(at(to)+0.5) - begin
	full, thin := "█", "▏"
	if c.ascii {
		full, thin = "#", "|"
	}
	if length < 1 {
		return strings.Repeat(" ", begin) + thin
	}
	return strings.Repeat(" ", begin) + strings.Repeat(full, min(length, width-begin))
}

// tell is a stage that was reached as a line for where nothing is redrawn:
// when, since the cluster was accepted; which; how long it took.
func (t *timeline) tell(stage string) string {
	i := slices.Index(clusterStages, stage)
	from, to, _ := t.span(i, t.reached[stage].at)
	line := fmt.Sprintf("  %8s  %-*s", terminal.Took(to.Sub(t.begun)), stageColumn, stage)
	if i > 0 {
		line += "  +" + terminal.Took(to.Sub(from))
	}
	if note := t.reached[stage].note; note != "" {
		line += "  " + terminal.OneLine(note)
	}
	return strings.TrimRight(line, " ")
}

// tellWait is why the present stage does not come on, as a line.
func (t *timeline) tellWait(now time.Time) string {
	stage := t.awaited()[min(t.present(), len(t.awaited())-1)]
	return fmt.Sprintf("  %8s  %-*s  waits: %s", terminal.Took(max(now.Sub(t.begun), 0)), stageColumn, stage,
		terminal.OneLine(t.waits))
}

// cells is how many cells of a terminal a text takes, by a rule that errs to
// the wide side: letters beyond the alphabets of the west take two.
func cells(text string) int {
	n := 0
	for _, r := range text {
		n += runeCells(r)
	}
	return n
}

func runeCells(r rune) int {
	if r >= 0x1100 && (r < 0x2000 || r >= 0x2E80) {
		return 2
	}
	return 1
}

// cut shortens a text to a number of cells, with an ellipsis.
func cut(text string, width int) string {
	if cells(text) <= width {
		return text
	}
	if width < 2 {
		return ""
	}
	n := 0
	for i, r := range text {
		if n+runeCells(r) > width-1 {
			return strings.TrimRight(text[:i], " ") + "…"
		}
		n += runeCells(r)
	}
	return text
}
