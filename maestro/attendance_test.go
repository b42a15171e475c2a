package maestro

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestWhatIsSaidOfAgents(t *testing.T) {
	at := func(s float64) time.Time {
		return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(s * float64(time.Second)))
	}
	a := newAttendance(60*time.Second, 10*time.Second, at(0))
	say := func(s float64, want string) {
		t.Helper()
		var got string
		for _, w := range a.due(at(s)) {
			got += fmt.Sprintf("%s %s heard %.0f;", w.consumer, [...]string{"", "present", "absent"}[w.sighting], w.heard.Sub(at(0)).Seconds())
			a.told(w, at(s))
		}
		if got != want {
			t.Errorf("at %.1f: %q, want %q", s, got, want)
		}
	}
	// From an earlier life of the server: one was heard long ago, one never was.
	a.note(map[string]time.Time{"old": at(-1000), "new": {}})
	say(1, "")
	if !a.hear("new", at(2)) {
		t.Error("the first word of an agent is no news")
	}
	say(2, "new present heard 2;")
	if a.hear("new", at(3)) {
		t.Error("the second is")
	}
	say(4, "")
	say(12, "new present heard 3;")
	say(30, "") // nothing was heard since
	say(59.9, "")
	say(60, "old absent heard -1000;")
	say(62.9, "")
	say(63, "new absent heard 3;")
	say(100, "")
	if !a.hear("new", at(101)) {
		t.Error("that a lost one is back is no news")
	}
	say(101, "new present heard 101;")
	// Another server hears it now; then neither does.
	a.note(map[string]time.Time{"new": at(150), "old": at(-1000)})
	say(170, "")
	say(209.9, "")
	say(210, "new absent heard 150;")
	// The other one hears it again, and says so; then it is gone, and so is the agent.
	a.note(map[string]time.Time{"new": at(215), "old": at(-1000)})
	say(220, "")
	say(275, "new absent heard 215;")
	// Who is not registered with the lifecycle manager yet is spoken of again soon,
	// then less and less often; once the word was taken, as often as others.
	a.hear("early", at(300))
	for _, s := range []float64{300, 300.5, 301.5, 303.5} {
		for _, w := range a.due(at(s)) {
			if w.consumer == "early" {
				a.refused(w, at(s))
				continue
			}
			t.Errorf("at %.1f: %v", s, w)
		}
		if left := a.due(at(s + 0.4)); len(left) > 0 {
			t.Errorf("it is said again 0.4 s after %.1f: %v", s, left)
		}
	}
	say(307, "")
	say(307.5, "early present heard 300;")
	say(312, "")
	// What is deregistered is nobody's.
	a.note(map[string]time.Time{})
	say(1000, "")
}

// Whatever happens: what is said last is so, as far as can be known, and an
// agent that goes on being heard is reported as often as it has to be, and no
// more often.
func TestTheLastWordIsTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_000_000, 0)
		a := newAttendance(60*time.Second, 10*time.Second, now)
		var heard, reported time.Time
		said := unsaid
		silent := false // it was for so long that others may have said that it is lost
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 25).Draw(t, "wait")) * time.Second)
			if rapid.Bool().Draw(t, "hears") {
				silent = silent || now.Sub(heard) >= 60*time.Second
				heard = now
				a.hear("x", now)
			}
			for _, w := range a.due(now) {
				if w.sighting == present && said == present && !silent && now.Sub(reported) < 10*time.Second {
					t.Fatalf("it is reported after %s", now.Sub(reported))
				}
				if rapid.IntRange(0, 9).Draw(t, "lost") > 0 {
					a.told(w, now)
					said, reported, silent = w.sighting, now, false
				}
			}
			if heard.IsZero() {
				if said != unsaid {
					t.Fatal("what was never heard is spoken of")
				}
				continue
			}
			if len(a.due(now)) == 0 && (said == absent) != (now.Sub(heard) >= 60*time.Second) {
				t.Fatalf("heard %s ago, and said %d", now.Sub(heard), said)
			}
		}
	})
}
