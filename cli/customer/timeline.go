package customer

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"atoll.dev/cli/terminal"
)

// clusterStages are the stages of a cluster in their order, as the Platform API's events name them.
var clusterStages = []string{"Accepted", "Placed", "Ordered", "PlaneStarting", "APIServing", string(stageReady),
	string(stageNodes)}

// lastStage is the stage at which the progress of a cluster ends.
type lastStage string

const (
	stageReady lastStage = "Ready"
	stageNodes lastStage = "NodesReady" // of clusters that have node pools
)

// lastStageWith returns the last stage of a cluster with so many node pools.
func lastStageWith(nodePools int) lastStage {
	if nodePools > 0 {
		return stageNodes
	}
	return stageReady
}

// timeline records the stages that a cluster has reached, and draws them. It reads no clock.
type timeline struct {
	name, phase string
	begun       time.Time // when the region accepted it
	last        lastStage
	reached     map[string]arrival
	waits       string // why the current stage is not reached yet; "" when unknown
}

// arrival is the time at which a stage was reached, with a note.
type arrival struct {
	at   time.Time
	note string
}

// reach records that a stage was reached, and reports whether it was not recorded before. Later
// times of the same stage are ignored: they belong to the life of the cluster after its creation.
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

// stages returns the stages of this cluster.
func (t *timeline) stages() []string {
	if _, seen := t.reached[string(stageNodes)]; t.last == stageNodes || seen {
		return clusterStages
	}
	return clusterStages[:len(clusterStages)-1]
}

// done reports whether every stage was reached.
func (t *timeline) done() bool {
	stages := t.stages()
	return t.currentStage() == len(stages)
}

// currentStage returns the index of the stage after the last one that was reached.
func (t *timeline) currentStage() int {
	stages := t.stages()
	for i := len(stages) - 1; i >= 0; i-- {
		if _, ok := t.reached[stages[i]]; ok {
			return i + 1
		}
	}
	return 0
}

// span returns when a stage began and ended. The current stage ends now. ok is false for a stage
// that was not observed and is not the current one.
func (t *timeline) span(i int, now time.Time) (from, to time.Time, ok bool) {
	stages := t.stages()
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
	case i == t.currentStage():
		to = now
	default:
		return from, from, false
	}
	if to.Before(from) { // two clocks, or two conditions in one report
		to = from
	}
	return from, to, true
}

// end returns the time of the last stage when all are reached, and now otherwise.
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

// canvas is the area on which a timeline is drawn.
type canvas struct {
	width  int // in cells
	colour bool
	ascii  bool // the terminal may not show other characters
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

// paint adds a colour to text when the canvas has colours.
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

// marks returns the marks of a stage that was reached, of the current one and of a later one.
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

// bar returns the width of the bars in cells, 0 when they would leave no room for notes.
func (c canvas) bar() int {
	switch {
	case c.width >= 100:
		return 24
	case c.width >= 70:
		return 12
	}
	return 0
}

// draw returns the lines of the timeline at a time. No line is wider than the canvas.
func (t *timeline) draw(c canvas, now time.Time) []string {
	end := t.end(now)
	total := max(end.Sub(t.begun), 0)
	title := terminal.OneLine(t.name)
	rest := fmt.Sprintf("  %s  %s", t.phase, terminal.Took(total))
	title = cut(title, max(c.width-cells(rest), 8))
	lines := []string{c.paint(bold, title) + cut(rest, c.width-cells(title)), ""}
	done, moving, later := c.marks()
	current := t.currentStage()
	for i, stage := range t.stages() {
		from, to, ok := t.span(i, now)
		duration, bar, note := "", "", t.reached[stage].note
		if ok {
			duration = terminal.Took(to.Sub(from))
			bar = c.drawBar(from.Sub(t.begun), to.Sub(t.begun), total)
		}
		mark, colour := done, green
		switch {
		case i == current:
			mark, colour, note = moving, yellow, t.waits
			if t.phase == "Failed" {
				colour = red
			}
		case i > current:
			mark, colour = later, faint
		}
		head := fmt.Sprintf(" %-*s  %*s  ", stageColumn, stage, tookColumn, duration)
		if i > current {
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

// drawBar draws the part from..to of the whole duration as a bar.
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

// stageLine returns a reached stage as one line: the time since the cluster was accepted, the
// stage, and its duration.
func (t *timeline) stageLine(stage string) string {
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

// waitLine returns the reason why the current stage is not reached yet, as one line.
func (t *timeline) waitLine(now time.Time) string {
	stage := t.stages()[min(t.currentStage(), len(t.stages())-1)]
	return fmt.Sprintf("  %8s  %-*s  waits: %s", terminal.Took(max(now.Sub(t.begun), 0)), stageColumn, stage,
		terminal.OneLine(t.waits))
}

// cells returns the number of terminal cells that a text takes. The estimate errs on the wide side:
// characters beyond western alphabets count as two cells.
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
