package sentinel

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// TestStates runs the commands of testdata/states on the state of one resource, and compares the state after each:
//
//	advance 1s
//	change version=2 generation=1 hash=7 round=4 [deleting]
//	listed version=2 generation=1 [unsent] [urgent] [wanted] [true_at=30m]
//	request [urgent] round=5
//	recheck
//	decide wanted|no|failed [after=wanted] [true_at=30m]
//	outcome delivered|undelivered
//	connect
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
			trueAt := func() instant {
				if !d.HasArg("true_at") {
					return 0
				}
				var text string
				d.ScanArgs(t, "true_at", &text)
				return instantOf(now.Add(must(t, mustDuration(t, text), nil)))
			}
			change := Change{Version: number("version"), Generation: number("generation"), ProgressHash: uint64(number("hash")),
				Deleting: d.HasArg("deleting"), Round: uint64(number("round"))}
			note := ""
			switch d.Cmd {
			case "advance":
				now = now.Add(mustDuration(t, d.CmdArgs[0].Key))
			case "change":
				s = policy.ApplyChange(s, change, now)
			case "listed":
				if d.HasArg("unsent") {
					s = policy.ApplyUnsent(s, change, Urgency(d.HasArg("urgent")), now)
				} else {
					s = policy.ApplyListed(s, change, NextDecision{d.HasArg("wanted"), trueAt()}, now)
				}
			case "request":
				s = policy.ApplyRequest(s, Urgency(d.HasArg("urgent")), change.Round, now)
			case "recheck":
				s = policy.ApplyRecheck(s, Urgency(d.HasArg("urgent")), now)
			case "decide":
				v := Verdict{Wanted: d.HasArg("wanted"), Failed: d.HasArg("failed"),
					After: NextDecision{Wanted: d.HasArg("after")}}
				v.TrueAt, v.After.TrueAt = trueAt(), trueAt()
				var send bool
				if s, send = policy.ApplyVerdict(s, v, now); send {
					note = "send; "
				}
			case "outcome":
				s = policy.ApplyOutcome(s, Outcome(d.HasArg("delivered")), now)
			case "connect":
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
	lane := "routine"
	if s.Urgent {
		lane = "urgent"
	}
	var words []string
	for _, part := range []struct {
		holds bool
		text  string
	}{
		{s.Sending, fmt.Sprintf("sending generation %d", s.SendingGeneration)},
		{s.Due != 0, fmt.Sprintf("due in %s (%s)", s.Due.time().Sub(now), lane)},
		{s.Due == 0 && !s.Sending, "waits for the feed"},
		{s.Wanted, "wanted"},
		{s.Requested || s.RequestedAgain, "requested"},
		{s.unsentSince() != 0, fmt.Sprintf("unsent since %d", s.unsentSince())},
		{s.Published != 0, fmt.Sprintf("published %d", s.Published)},
		{s.Attempts != 0, fmt.Sprintf("attempts %d", s.Attempts)},
	} {
		if part.holds {
			words = append(words, part.text)
		}
	}
	return strings.Join(words, ", ")
}

// After random transitions: each change of a spec and each request stays unsent until the broker acknowledges an event
// after it or the rules want no event, and a resource with an unsent or wanted event is due or has an event in flight.
func TestI6EachUnsentEventIsDueOrInFlight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := Policy{}.withDefaults()
		s := State{Salt: rapid.Uint64().Draw(t, "salt")}
		now := time.Unix(1_800_000_000, 0)
		var version, generation int64
		var round uint64
		unsent := map[uint64]bool{}   // rounds whose event was not sent
		inFlight := map[uint64]bool{} // rounds of the event in flight
		addUnsent := func() { unsent[round] = true }
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				round++
				version++
				if generation == 0 || rapid.Bool().Draw(t, "spec") {
					generation++
					addUnsent()
				}
				s = policy.ApplyChange(s, Change{Version: version, Generation: generation, ProgressHash: rapid.Uint64Range(
					0, 3).Draw(t, "mark"), Round: round}, now)
			},
			"request": func(t *rapid.T) {
				isRequest := rapid.Bool().Draw(t, "request")
				round++
				if isRequest && version > 0 {
					addUnsent()
				}
				if version > 0 {
					urgency := Urgency(rapid.Bool().Draw(t, "urgent"))
					if isRequest {
						s = policy.ApplyRequest(s, urgency, round, now)
					} else {
						s = policy.ApplyRecheck(s, urgency, now)
					}
				}
			},
			"connect": func(*rapid.T) { s = policy.ApplyConnect(s, now) },
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.Int64Range(1, int64(10*time.Minute)).Draw(t, "passes")))
			},
			"decide": func(t *rapid.T) {
				if s.Due == 0 || s.Sending {
					t.Skip("nothing is due")
				}
				now = later(now, s.Due.time())
				v := Verdict{Wanted: rapid.Bool().Draw(t, "wanted"), Failed: rapid.Bool().Draw(t, "failed"),
					After: NextDecision{Wanted: rapid.Bool().Draw(t, "after")}}
				if rapid.Bool().Draw(t, "flips") {
					v.TrueAt, v.After.TrueAt = instantOf(now.Add(time.Hour)), instantOf(now.Add(time.Hour))
				}
				requested := s.Requested
				var send bool
				if s, send = policy.ApplyVerdict(s, v, now); send != (requested || v.Wanted && !v.Failed) {
					t.Fatalf("requested %v, %+v: send %v", requested, v, send)
				}
				if send {
					inFlight, unsent = unsent, map[uint64]bool{}
				} else {
					clear(unsent) // the rules want no event
				}
			},
			"outcome": func(t *rapid.T) {
				if !s.Sending {
					t.Skip("no event is in flight")
				}
				ok := rapid.Bool().Draw(t, "ok")
				if !ok {
					for r := range inFlight {
						unsent[r] = true
					}
				}
				clear(inFlight)
				s = policy.ApplyOutcome(s, Outcome(ok), now)
				if ok && (s.Published == 0 || s.PublishedAt == 0) {
					t.Fatal("the state has no published event")
				}
			},
			"": func(t *rapid.T) {
				first := uint64(0)
				for _, rounds := range []map[uint64]bool{unsent, inFlight} {
					for r := range rounds {
						if first == 0 || r < first {
							first = r
						}
					}
				}
				if got := s.unsentSince(); got != first {
					t.Fatalf("the first unsent round is %d, the state has %d: %+v", first, got, s)
				}
				if (first != 0 || s.Wanted || s.Requested) && s.Due == 0 && !s.Sending {
					t.Fatalf("an event is unsent, and neither due nor in flight: %+v", s)
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

// A resource that is never reconciled has at most one event in four minutes, and at most twice the budget if each event
// causes another report.
func TestAnUnreconciledResourceHasFewEvents(t *testing.T) {
	for name, newReports := range map[string]bool{"same report": false, "new reports": true} {
		policy := Policy{}.withDefaults()
		now := time.Unix(1_800_000_000, 0)
		end := now.Add(24 * time.Hour)
		s := policy.ApplyChange(State{Salt: 7}, Change{Version: 1, Generation: 1}, now)
		events := 0
		for now.Before(end) {
			now = later(now, s.Due.time())
			var send bool
			if s, send = policy.ApplyVerdict(s, Verdict{Wanted: true, After: NextDecision{Wanted: true}}, now); !send {
				t.Fatalf("%s: no event is sent: %+v", name, s)
			}
			events++
			now = now.Add(time.Millisecond)
			s = policy.ApplyOutcome(s, Delivered, now)
			if newReports { // each event causes another report
				s = policy.ApplyChange(s, Change{Version: s.Version + 1, Generation: 1, ProgressHash: uint64(events)}, now)
			}
		}
		limit := 24*60/4 + 20 // one in 4 minutes, and those of the first back-offs
		if newReports {
			limit = 2*24*60*2 + 40 // two for each event of the budget
		}
		t.Logf("%s: %d events in a day", name, events)
		if events > limit || events < 200 {
			t.Errorf("%s: %d events in a day, of at most %d", name, events, limit)
		}
	}
}
