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

// stageMarks returns the marks of a stage that was reached, of the current one and of a later one.
func (c canvas) stageMarks() (done, moving, later string) {
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

// barWidth returns the width of the bars in cells, 0 when they would leave no room for notes.
func (c canvas) barWidth() int {
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
	end := t.endTime(now)
	total := max(end.Sub(t.begun), 0)
	title := terminal.OneLine(t.name)
	rest := fmt.Sprintf("  %s  %s", t.phase, terminal.FormatDuration(total))
	title = truncate(title, max(c.width-cellWidth(rest), 8))
	lines := []string{c.paint(bold, title) + truncate(rest, c.width-cellWidth(title)), ""}
	done, moving, later := c.stageMarks()
	current := t.currentStage()
	for i, stage := range t.stages() {
		from, to, ok := t.stageSpan(i, now)
		duration, bar, note := "", "", t.reached[stage].note
		if ok {
			duration = terminal.FormatDuration(to.Sub(from))
			bar = c.drawBar(from.Sub(t.begun), to.Sub(t.begun), total)
		}
		mark, colour := done, green
		switch {
		case i == current:
			mark, colour, note = moving, yellow, t.waitReason
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
		if width := c.barWidth(); width > 0 && bar+note != "" {
			body = c.paint(colour, bar) + strings.Repeat(" ", width-cellWidth(bar)+1)
		}
		room := c.width - fixedCells
		if c.barWidth() > 0 {
			room -= c.barWidth() + 1
		}
		lines = append(lines, strings.TrimRight("  "+c.paint(colour, mark)+head+body+c.paint(
			faint, truncate(terminal.OneLine(note), room)), " "))
	}
	for i, l := range lines {
		if !c.colour {
			lines[i] = truncate(l, c.width)
		}
	}
	return lines
}

// drawBar draws the part from..to of the whole duration as a bar.
func (c canvas) drawBar(from, to, total time.Duration) string {
	width := c.barWidth()
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

// cellWidth returns the number of terminal cells that a text takes. The estimate errs on the wide side:
// characters beyond western alphabets count as two cells.
func cellWidth(text string) int {
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

// truncate shortens a text to a number of cells, with an ellipsis.
func truncate(text string, width int) string {
	if cellWidth(text) <= width {
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
