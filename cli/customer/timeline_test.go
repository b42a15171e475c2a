package customer

import (
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"
)

// timelineInput is the input of a case in testdata/timeline. Times are milliseconds since the
// cluster was accepted.
type timelineInput struct {
	Name, Phase, Waits string
	Nodes              bool
	Reached            []struct {
		Stage, Note string
		MS          int
	}
	Now    int
	Width  int
	Colour bool
	ASCII  bool
	Tick   int
}

var accepted = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func atMS(ms int) time.Time { return accepted.Add(time.Duration(ms) * time.Millisecond) }

// TestTimeline runs the files of testdata/timeline: "draw" prints the screen of a terminal, with
// escapes as \e; "lines" prints the lines without a terminal.
func TestTimeline(t *testing.T) {
	datadriven.Walk(t, "testdata/timeline", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s := timelineInput{Width: 100}
			if err := yaml.UnmarshalStrict([]byte(d.Input), &s); err != nil {
				d.Fatalf(t, "%v", err)
			}
			tl := timeline{name: s.Name, phase: s.Phase, last: stageReady, waitReason: s.Waits}
			if s.Nodes {
				tl.last = stageNodes
			}
			var printed []string
			for _, r := range s.Reached {
				if tl.recordStage(r.Stage, atMS(r.MS), r.Note) {
					printed = append(printed, tl.stageLine(r.Stage))
				}
			}
			if tl.waitReason != "" {
				printed = append(printed, tl.waitLine(atMS(s.Now)))
			}
			if d.Cmd == "lines" {
				return strings.Join(printed, "\n") + "\n"
			}
			lines := tl.draw(canvas{width: s.Width, colour: s.Colour, ascii: s.ASCII, tick: s.Tick}, atMS(s.Now))
			return strings.ReplaceAll(strings.Join(lines, "\n")+"\n", "\x1b", `\e`)
		})
	})
}

// Whatever happens in whatever order, on a terminal of whatever size: as many
// lines as before, so that they can be redrawn, and none that wraps.
func TestTimelineFitsItsTerminal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tl := timeline{name: rapid.String().Draw(t, "name"), phase: "Provisioning", last: stageNodes,
			waitReason: rapid.String().Draw(t, "waits")}
		for range rapid.IntRange(0, 9).Draw(t, "events") {
			tl.recordStage(rapid.SampledFrom(clusterStages).Draw(t, "stage"),
				atMS(rapid.IntRange(-5000, 600000).Draw(t, "at")), rapid.String().Draw(t, "note"))
		}
		c := canvas{width: rapid.IntRange(20, 200).Draw(t, "width"), tick: rapid.IntRange(0, 99).Draw(t, "tick"),
			ascii: rapid.Bool().Draw(t, "ascii")}
		lines := tl.draw(c, atMS(rapid.IntRange(0, 600000).Draw(t, "now")))
		if len(lines) != 2+len(clusterStages) {
			t.Fatalf("%d lines", len(lines))
		}
		for _, l := range lines {
			if cellWidth(l) > c.width {
				t.Fatalf("%d cells on a terminal of %d: %q", cellWidth(l), c.width, l)
			}
		}
	})
}
