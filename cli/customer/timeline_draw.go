package customer

import (
	"fmt"
	"strings"
	"time"

	"atoll.dev/cli/terminal"
)

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
	rest := fmt.Sprintf("  %s  %s", t.phase, terminal.FormatDuration(total))
	title = cut(title, max(c.width-cells(rest), 8))
	lines := []string{c.paint(bold, title) + cut(rest, c.width-cells(title)), ""}
	done, moving, later := c.marks()
	current := t.currentStage()
	for i, stage := range t.stages() {
		from, to, ok := t.span(i, now)
		duration, bar, note := "", "", t.reached[stage].note
		if ok {
			duration = terminal.FormatDuration(to.Sub(from))
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
