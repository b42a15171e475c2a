package customer

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"
)

// screen is a terminal on which a few lines are redrawn in place.
type screen struct {
	w      io.Writer
	size   func() (width, height int, err error)
	colour bool
	ascii  bool
	drawn  []string // the lines on the screen
}

// newScreen returns a screen on w, or nil when w is no terminal or cannot redraw lines.
func newScreen(w io.Writer, getenv func(string) string) *screen {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || getenv("TERM") == "dumb" || getenv("TERM") == "" {
		return nil
	}
	return &screen{
		w: w, size: func() (int, int, error) { return term.GetSize(int(f.Fd())) },
		colour: getenv("NO_COLOR") == "", ascii: !utf8Locale(getenv),
	}
}

// utf8Locale reports whether the locale is UTF-8. The first variable that is set decides, as in
// setlocale(3).
func utf8Locale(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := getenv(name); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}

// canvas returns a canvas of the present size; ok is false when the terminal is too small for so
// many lines.
func (s *screen) canvas(lines int) (c canvas, ok bool) {
	width, height, err := s.size()
	if err != nil || width <= fixedCells || height <= lines {
		return canvas{}, false
	}
	return canvas{width: width - 1, colour: s.colour, ascii: s.ascii}, true // the last cell makes some terminals wrap
}

// redraw replaces the lines that were drawn before.
func (s *screen) redraw(lines []string) {
	if slices.Equal(lines, s.drawn) {
		return
	}
	var b strings.Builder
	if n := len(s.drawn); n > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r", n)
	}
	for _, l := range lines {
		b.WriteString(l + "\x1b[K\n")
	}
	if len(lines) < len(s.drawn) {
		b.WriteString("\x1b[J")
	}
	_, _ = io.WriteString(s.w, b.String()) // a signal reports a closed terminal
	s.drawn = slices.Clone(lines)
}
