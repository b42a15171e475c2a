package customer

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// fakeTerminal obeys the few sequences that a screen uses.
type fakeTerminal struct {
	rows []string
	y    int
}

func (m *fakeTerminal) Write(p []byte) (int, error) {
	text := string(p)
	for text != "" {
		var n int
		switch {
		case strings.HasPrefix(text, "\x1b[K"), strings.HasPrefix(text, "\r"):
			text = strings.TrimPrefix(strings.TrimPrefix(text, "\x1b[K"), "\r")
		case strings.HasPrefix(text, "\x1b[J"):
			m.rows, text = m.rows[:m.y], text[3:]
		case strings.HasPrefix(text, "\x1b["):
			if _, err := fmt.Sscanf(text, "\x1b[%dA", &n); err != nil || n > m.y {
				return 0, fmt.Errorf("up by %d from line %d: %q", n, m.y, text)
			}
			m.y -= n
			text = text[strings.Index(text, "A")+1:]
		default:
			line, rest, _ := strings.Cut(text, "\n")
			for len(m.rows) <= m.y {
				m.rows = append(m.rows, "")
			}
			m.rows[m.y] = strings.TrimSuffix(line, "\x1b[K")
			m.y++
			text = rest
		}
	}
	return len(p), nil
}

// After any sequence of drawings the terminal shows the last one, below the lines that it had
// before.
func TestScreenShowsTheLastDrawing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &fakeTerminal{rows: []string{"before"}, y: 1}
		s := &screen{w: m}
		drawings := rapid.SliceOfN(rapid.SliceOfN(rapid.StringMatching(`[a-z ]{0,10}`), 1, 6), 1, 8).Draw(t, "drawings")
		for _, lines := range drawings {
			s.redraw(lines)
		}
		want := append([]string{"before"}, drawings[len(drawings)-1]...)
		if got := strings.Join(m.rows, "\n"); got != strings.Join(want, "\n") || m.y != len(want) {
			t.Fatalf("line %d of\n%s\nwant\n%s", m.y, got, strings.Join(want, "\n"))
		}
	})
}

func TestScreenNeedsATerminal(t *testing.T) {
	if newScreen(&strings.Builder{}, func(string) string { return "xterm" }) != nil {
		t.Error("a buffer is no terminal")
	}
	for _, c := range []struct {
		width, height int
		err           error
		ok            bool
	}{{80, 24, nil, true}, {80, 9, nil, false}, {40, 24, nil, true}, {28, 24, nil, false}, {0, 0, errors.New("gone"),
		false}} {
		s := &screen{size: func() (int, int, error) { return c.width, c.height, c.err }}
		if got, ok := s.canvas(9); ok != c.ok || ok && got.width >= c.width {
			t.Errorf("%+v: %+v, %t", c, got, ok)
		}
	}
	for _, c := range []struct {
		env  string
		utf8 bool
	}{{"", false}, {"LANG=C", false}, {"LANG=C.UTF-8", true}, {"LANG=de_DE.utf8", true}, {"LC_ALL=POSIX,LANG=C.UTF-8",
		false}, {"LC_CTYPE=UTF-8,LANG=C", true}} {
		env := map[string]string{}
		for pair := range strings.SplitSeq(c.env, ",") {
			k, v, _ := strings.Cut(pair, "=")
			env[k] = v
		}
		if got := utf8Locale(func(k string) string { return env[k] }); got != c.utf8 {
			t.Errorf("%q: %t", c.env, got)
		}
	}
}
