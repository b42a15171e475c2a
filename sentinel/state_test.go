package sentinel

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// The commands: each is a thing that happens to one resource; the answer is its
// state then.
//
//	advance 1s
//	change version=2 generation=1 mark=7 round=4 [deleting]
//	found version=2 generation=1 [unseen] [urgent] [wanted] [flip=30m]
//	ask [forced] [urgent] round=5
//	decide wanted|not|failed [after=wanted] [flip=30m]
//	sent ok|lost
//	hello
func TestStates(t *testing.T) {
	datadriven.Walk(t, "testdata/states", func(t *testing.T, path string) {
		policy := Policy{}.withDefaults()
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		s := State{Salt: 1}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			number := func(name string) (n int64) {
				if d.HasArg(name) {
					d.ScanArgs(t, name, &n)
				}
				return n
			}
			flip := func() instant {
				if !d.HasArg("flip") {
					return 0
				}
				var text string
				d.ScanArgs(t, "flip", &text)
				return instantOf(now.Add(must(t, mustDuration(t, text), nil)))
			}
			change := Change{Version: number("version"), Generation: number("generation"), Mark: uint64(number("mark")),
				Deleting: d.HasArg("deleting"), Round: uint64(number("round"))}
			note := ""
			switch d.Cmd {
			case "advance":
				now = now.Add(mustDuration(t, d.CmdArgs[0].Key))
			case "change":
				s = policy.ApplyChange(s, change, now)
			case "found":
				if d.HasArg("unseen") {
					s = policy.ApplyUnseen(s, change, Urgency(d.HasArg("urgent")), now)
				} else {
					s = policy.ApplyListed(s, change, After{d.HasArg("wanted"), flip()}, now)
				}
			case "ask":
				if d.HasArg("forced") {
					s = policy.ApplyRequest(s, Urgency(d.HasArg("urgent")), change.Round, now)
				} else {
					s = policy.ApplyRecheck(s, Urgency(d.HasArg("urgent")), now)
				}
			case "decide":
				v := Verdict{Wanted: d.HasArg("wanted"), Failed: d.HasArg("failed"),
					After: After{Wanted: d.HasArg("after")}}
				v.Flip, v.After.Flip = flip(), flip()
				var send bool
				if s, send = policy.ApplyVerdict(s, v, now); send {
					note = "send; "
				}
			case "sent":
				s = policy.ApplyOutcome(s, Outcome(d.HasArg("ok")), now)
			case "hello":
				s = policy.ApplyConnect(s, now)
			default:
				t.Fatalf("unknown command %s", d.Cmd)
			}
			return note + describe(s, now) + "\n"
		})
	})
}

func mustDuration(t *testing.T, text string) time.Duration {
	d, err := time.ParseDuration(text)
	return must(t, d, err)
}

func describe(s State, now time.Time) string {
	var words []string
	say := func(holds bool, format string, args ...any) {
		if holds {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	lane := "calm"
	if s.Urgent {
		lane = "urgent"
	}
	say(s.Sending, "sending generation %d", s.SentGen)
	say(s.Due != 0, "due in %s (%s)", s.Due.time().Sub(now), lane)
	say(s.Due == 0 && !s.Sending, "waits for the feed")
	say(s.Wanted, "wanted")
	say(s.Forced || s.ForcedAgain, "forced")
	say(s.unsentSince() != 0, "owed since %d", s.unsentSince())
	say(s.Published != 0, "told %d", s.Published)
	say(s.Attempts != 0, "attempts %d", s.Attempts)
	return strings.Join(words, ", ")
}

// Whatever happens, in whatever order: what is owed is under way or due; what a
// writer did after the last event that the broker took is owed, until the rules
// say that no event is needed; and the state never waits for nothing.
func TestI6NothingIsForgotten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := Policy{}.withDefaults()
		s := State{Salt: rapid.Uint64().Draw(t, "salt")}
		now := time.Unix(1_800_000_000, 0)
		var version, generation int64
		var round uint64
		open := map[uint64]bool{}  // rounds that an event is owed for
		flown := map[uint64]bool{} // of those, what the event that is on its way covers
		owe := func() { open[round] = true }
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				round++
				version++
				if generation == 0 || rapid.Bool().Draw(t, "spec") {
					generation++
					owe()
				}
				s = policy.ApplyChange(s, Change{Version: version, Generation: generation, Mark: rapid.Uint64Range(
					0, 3).Draw(t, "mark"), Round: round}, now)
			},
			"ask": func(t *rapid.T) {
				forced := rapid.Bool().Draw(t, "forced")
				round++
				if forced && version > 0 {
					owe()
				}
				if version > 0 {
					urgency := Urgency(rapid.Bool().Draw(t, "urgent"))
					if forced {
						s = policy.ApplyRequest(s, urgency, round, now)
					} else {
						s = policy.ApplyRecheck(s, urgency, now)
					}
				}
			},
			"hello": func(*rapid.T) { s = policy.ApplyConnect(s, now) },
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.Int64Range(1, int64(10*time.Minute)).Draw(t, "passes")))
			},
			"decide": func(t *rapid.T) {
				if s.Due == 0 || s.Sending {
					t.Skip("nothing is due")
				}
				now = later(now, s.Due.time())
				v := Verdict{Wanted: rapid.Bool().Draw(t, "wanted"), Failed: rapid.Bool().Draw(t, "failed"),
					After: After{Wanted: rapid.Bool().Draw(t, "after")}}
				if rapid.Bool().Draw(t, "flips") {
					v.Flip, v.After.Flip = instantOf(now.Add(time.Hour)), instantOf(now.Add(time.Hour))
				}
				forced := s.Forced
				var send bool
				if s, send = policy.ApplyVerdict(s, v, now); send != (forced || v.Wanted && !v.Failed) {
					t.Fatalf("forced %v, %+v: send %v", forced, v, send)
				}
				if send {
					flown, open = open, map[uint64]bool{}
				} else {
					clear(open) // the rules want no event
				}
			},
			"sent": func(t *rapid.T) {
				if !s.Sending {
					t.Skip("nothing is on its way")
				}
				ok := rapid.Bool().Draw(t, "ok")
				if !ok {
					for r := range flown {
						open[r] = true
					}
				}
				clear(flown)
				s = policy.ApplyOutcome(s, Outcome(ok), now)
				if ok && (s.Published == 0 || s.PublishedAt == 0) {
					t.Fatal("the event is not noted")
				}
			},
			"": func(t *rapid.T) {
				first := uint64(0)
				for _, rounds := range []map[uint64]bool{open, flown} {
					for r := range rounds {
						if first == 0 || r < first {
							first = r
						}
					}
				}
				if got := s.unsentSince(); got != first {
					t.Fatalf("owed since %d, and says %d: %+v", first, got, s)
				}
				if (first != 0 || s.Wanted || s.Forced) && s.Due == 0 && !s.Sending {
					t.Fatalf("it waits for nothing: %+v", s)
				}
				if s.Due != 0 && s.Due.time().After(now.Add(2*time.Hour)) {
					t.Fatalf("due in %s", s.Due.time().Sub(now))
				}
			},
		})
	})
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// A resource that fails for ever has about one event in five minutes, however
// often its adapters report something else.
func TestAResourceThatIsStuckCostsLittle(t *testing.T) {
	for name, restless := range map[string]bool{"quiet": false, "restless": true} {
		policy := Policy{}.withDefaults()
		now := time.Unix(1_800_000_000, 0)
		end := now.Add(24 * time.Hour)
		s := policy.ApplyChange(State{Salt: 7}, Change{Version: 1, Generation: 1}, now)
		events := 0
		for now.Before(end) {
			now = later(now, s.Due.time())
			var send bool
			if s, send = policy.ApplyVerdict(s, Verdict{Wanted: true, After: After{Wanted: true}}, now); !send {
				t.Fatalf("%s: nothing is sent: %+v", name, s)
			}
			events++
			now = now.Add(time.Millisecond)
			s = policy.ApplyOutcome(s, Delivered, now)
			if restless { // each event brings another report
				s = policy.ApplyChange(s, Change{Version: s.Version + 1, Generation: 1, Mark: uint64(events)}, now)
			}
		}
		limit := 24*60/4 + 20 // every 4 minutes at least, and how it begins
		if restless {
			limit = 2*24*60*2 + 40 // two for each of the budget's
		}
		t.Logf("%s: %d events in a day", name, events)
		if events > limit || events < 200 {
			t.Errorf("%s: %d events in a day, of at most %d", name, events, limit)
		}
	}
}
