package delivery

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/work"

	"github.com/cockroachdb/datadriven"
)

// TestMachine runs the scripts of testdata. Their commands:
//
//	new [window=N] [burst=N] [retries=N] [probes=N]
//	want|resend|ack|received|forget|heard  lines of "<consumer>/<id> [gen] [deleting]"
//	connect | disconnect
//	next [limit=N] [at=D] [sent=ok|error|no]  what goes out at that time; by default all of it is published
//	wake                                    when the machine wants to be asked again
func TestMachine(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		start := time.Unix(0, 0)
		now := start
		m := New(Config{})
		open := map[string]Send{} // by work; their Sent is to come
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.HasArg("at") {
				var at string
				d.ScanArgs(t, "at", &at)
				offset, err := time.ParseDuration(at)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				now = start.Add(offset)
			}
			number := func(name string, def int) int {
				if d.HasArg(name) {
					d.ScanArgs(t, name, &def)
				}
				return def
			}
			switch d.Cmd {
			case "new":
				now = start
				m = New(Config{Window: number("window", 0), Burst: number("burst", 0), Retries: number("retries", 0),
					Probes: number("probes", 0)})
				m.Connect()
				return ""
			case "connect":
				m.Connect()
				return ""
			case "disconnect":
				m.Disconnect()
				return ""
			case "wake":
				at, ok := m.NextWake()
				if !ok {
					return "nothing to wait for\n"
				}
				return at.Sub(start).String() + "\n"
			case "next":
				how := "ok"
				if d.HasArg("sent") {
					d.ScanArgs(t, "sent", &how)
				}
				var out strings.Builder
				sends := m.Next(now, number("limit", 1000))
				for _, s := range sends {
					open[string(s.Consumer)+"/"+string(s.ID)] = s
					fmt.Fprintf(&out, "%s\n", show(s))
				}
				for _, s := range sends {
					switch how {
					case "ok":
						m.EndSend(now, s, s.Work, Published)
					case "error":
						m.EndSend(now, s, s.Work, NotSent)
					}
				}
				if out.Len() == 0 {
					return "nothing\n"
				}
				return out.String()
			}
			for line := range strings.Lines(d.Input) {
				w := parseWork(t, strings.TrimSpace(line))
				switch d.Cmd {
				case "want":
					m.Add(w)
				case "resend":
					m.Resend(w)
				case "ack":
					m.Acknowledge(w.Consumer, w.ID, w.Generation)
				case "received":
					m.Postpone(now, w.Consumer, w.ID, w.Generation)
				case "forget":
					m.Forget(w)
				case "heard":
					m.RecordContact(w.Consumer)
				case "published":
					m.EndSend(now, open[string(w.Consumer)+"/"+string(w.ID)], w, Published)
				default:
					d.Fatalf(t, "unknown command %s", d.Cmd)
				}
			}
			works, ahead := m.Pending()
			return fmt.Sprintf("%d pending, %d of them sent\n", works, ahead)
		})
	})
}

func parseWork(t *testing.T, line string) Work {
	t.Helper()
	words := strings.Fields(line)
	consumer, id, _ := strings.Cut(words[0], "/")
	w := Work{Consumer: work.Consumer(consumer), ID: work.ID(id), Deleting: slices.Contains(words, "deleting")}
	if len(words) > 1 {
		if _, err := fmt.Sscan(words[1], &w.Generation); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
	return w
}

func show(s Send) string {
	out := fmt.Sprintf("%s/%s generation %d", s.Consumer, s.ID, s.Generation)
	if s.Deleting {
		out += " deleting"
	}
	if s.Attempt > 1 {
		out += fmt.Sprintf(", attempt %d", s.Attempt)
	}
	return out
}
