package presence

import (
	"fmt"
	"testing"
	"time"

	"atoll.dev/api/work"

	"pgregory.net/rapid"
)

func TestReportsThatAreDue(t *testing.T) {
	at := func(s float64) time.Time {
		return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(s * float64(time.Second)))
	}
	a := newSchedule(60*time.Second, 10*time.Second, at(0))
	say := func(s float64, want string) {
		t.Helper()
		var got string
		for _, w := range a.due(at(s), allAgents) {
			got += fmt.Sprintf("%s %s heard %.0f;", w.consumer, [...]string{"", "present", "absent"}[w.state],
				w.lastSeen.Sub(at(0)).Seconds())
			a.markReported(w, at(s))
		}
		if got != want {
			t.Errorf("at %.1f: %q, want %q", s, got, want)
		}
	}
	// The database's clock is an hour ahead of this server's; only differences count.
	now := at(0)
	record := func(s float64) agentSeen { return agentSeen{at(s + 3600), now.Sub(at(s))} }
	note := func(s float64, heard map[string]float64) {
		now = at(s)
		seen := map[work.Consumer]agentSeen{}
		for name, s := range heard {
			seen[work.Consumer(name)] = agentSeen{}
			if s != 0 {
				seen[work.Consumer(name)] = record(s)
			}
		}
		a.merge(seen, now)
		// Read again, the same record gives a time that is a little later.
		a.merge(seen, now.Add(3*time.Millisecond))
	}
	// From an earlier life of the server: one sent its last event long ago, one never sent any.
	note(0, map[string]float64{"old": -1000, "new": 0})
	say(1, "")
	if !a.observe("new", at(2)) {
		t.Error("the first word of an agent is no news")
	}
	say(2, "new present heard 2;")
	if a.observe("new", at(3)) {
		t.Error("the second is")
	}
	say(4, "")
	say(12, "new present heard 3;")
	say(30, "") // no event came since
	say(59.9, "")
	say(60, "old absent heard -1000;")
	say(62.9, "")
	say(63, "new absent heard 3;")
	say(100, "")
	if !a.observe("new", at(101)) {
		t.Error("that a lost one is back is no news")
	}
	say(101, "new present heard 101;")
	// Another server receives its events now; then no server does.
	note(151, map[string]float64{"new": 150, "old": -1000})
	say(170, "new present heard 150;")
	say(209.9, "")
	say(210, "new absent heard 150;")
	// The other server receives its events again, and reports that; then the server stops, and the agent too.
	note(216, map[string]float64{"new": 215, "old": -1000})
	say(220, "new present heard 215;")
	say(275, "new absent heard 215;")
	// Who is not registered with the lifecycle manager yet is spoken of again soon,
	// then less and less often; once the word was taken, as often as others.
	a.observe("early", at(300))
	for _, s := range []float64{300, 300.5, 301.5, 303.5} {
		for _, w := range a.due(at(s), allAgents) {
			if w.consumer == "early" {
				a.markRefused(w, at(s))
				continue
			}
			t.Errorf("at %.1f: %v", s, w)
		}
		if left := a.due(at(s+0.4), allAgents); len(left) > 0 {
			t.Errorf("it is said again 0.4 s after %.1f: %v", s, left)
		}
	}
	say(307, "")
	say(307.5, "early present heard 300;")
	say(312, "")
	// What is deregistered is nobody's.
	note(900, nil)
	say(1000, "")
}

// Whatever happens: what is said last is so, as far as can be known, and an
// agent that goes on being heard is reported as often as it has to be, and no
// more often.
func TestTheLastWordIsTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_000_000, 0)
		a := newSchedule(60*time.Second, 10*time.Second, now)
		var heard, reported time.Time
		said := unreported
		silent := false // it was for so long that others may have said that it is lost
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 25).Draw(t, "wait")) * time.Second)
			if rapid.Bool().Draw(t, "hears") {
				silent = silent || now.Sub(heard) >= 60*time.Second
				heard = now
				a.observe("x", now)
			}
			for _, w := range a.due(now, allAgents) {
				if w.state == present && said == present && !silent && now.Sub(reported) < 10*time.Second {
					t.Fatalf("it is reported after %s", now.Sub(reported))
				}
				if rapid.IntRange(0, 9).Draw(t, "lost") > 0 {
					a.markReported(w, now)
					said, reported, silent = w.state, now, false
				}
			}
			if heard.IsZero() {
				if said != unreported {
					t.Fatal("what was never heard is spoken of")
				}
				continue
			}
			if len(a.due(now, allAgents)) == 0 && (said == absent) != (now.Sub(heard) >= 60*time.Second) {
				t.Fatalf("heard %s ago, and said %d", now.Sub(heard), said)
			}
		}
	})
}

// Of several servers one repeats that agents are heard, and says who is lost; the
// others say only what is news and they heard themselves.
func TestOneServerSpeaksOfAllAgents(t *testing.T) {
	begun := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return begun.Add(time.Duration(s) * time.Second) }
	a := newSchedule(60*time.Second, 60*time.Second, begun)
	said := func(s int, d reportScope) (n int) {
		for _, w := range a.due(at(s), d) {
			a.markReported(w, at(s))
			n++
		}
		return n
	}
	const agents = 1000
	hear := func(s int) {
		for i := range agents {
			a.observe(work.Consumer(fmt.Sprintf("mc-%d", i)), at(s))
		}
	}
	hear(1)
	if n := said(1, newContactsHere); n != agents {
		t.Errorf("%d of %d that came are said", n, agents)
	}
	hear(50)
	if n := said(50, newContactsHere); n != 0 {
		t.Errorf("a server that does not have to repeats %d", n)
	}
	most, all := 0, 0
	for s := 61; s < 121; s++ {
		hear(s)
		n := said(s, allAgents)
		most, all = max(most, n), all+n
	}
	if all != agents || most > 2*agents/60+1 {
		t.Errorf("in a minute %d words are repeated, at most %d at a time", all, most)
	}
	if n := said(1000, newContactsHere); n != 0 {
		t.Errorf("a server that does not have to says that %d are lost", n)
	}
	if n := said(1000, allAgents); n != agents {
		t.Errorf("%d of %d are lost", n, agents)
	}
}
