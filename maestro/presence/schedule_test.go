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
	wantDue := func(s float64, want string) {
		t.Helper()
		var got string
		for _, w := range a.dueReports(at(s), allAgents) {
			got += fmt.Sprintf("%s %s at %.0f;", w.consumer, [...]string{"", "present", "absent"}[w.state],
				w.lastSeen.Sub(at(0)).Seconds())
			a.markReported(w, at(s))
		}
		if got != want {
			t.Errorf("at %.1f: %q, want %q", s, got, want)
		}
	}
	// The database's clock is an hour ahead of this server's; only differences count.
	now := at(0)
	record := func(s float64) agentSeen { return agentSeen{At: at(s + 3600), Ago: now.Sub(at(s))} }
	note := func(s float64, lastContact map[string]float64) {
		now = at(s)
		seen := map[work.Consumer]agentSeen{}
		for name, s := range lastContact {
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
	wantDue(1, "")
	if !a.observe("new", at(2)) {
		t.Error("the first event of an agent is no news")
	}
	wantDue(2, "new present at 2;")
	if a.observe("new", at(3)) {
		t.Error("the second is")
	}
	wantDue(4, "")
	wantDue(12, "new present at 3;")
	wantDue(30, "") // no event came since
	wantDue(59.9, "")
	wantDue(60, "old absent at -1000;")
	wantDue(62.9, "")
	wantDue(63, "new absent at 3;")
	wantDue(100, "")
	if !a.observe("new", at(101)) {
		t.Error("that a lost one is back is no news")
	}
	wantDue(101, "new present at 101;")
	// Another server receives its events now; then no server does.
	note(151, map[string]float64{"new": 150, "old": -1000})
	wantDue(170, "new present at 150;")
	wantDue(209.9, "")
	wantDue(210, "new absent at 150;")
	// The other server receives its events again, and reports that; then the server stops, and the agent too.
	note(216, map[string]float64{"new": 215, "old": -1000})
	wantDue(220, "new present at 215;")
	wantDue(275, "new absent at 215;")
	// An agent that is not registered with the lifecycle manager yet is reported again soon,
	// then at growing intervals; once a report was accepted, as often as others.
	a.observe("early", at(300))
	for _, s := range []float64{300, 300.5, 301.5, 303.5} {
		for _, w := range a.dueReports(at(s), allAgents) {
			if w.consumer == "early" {
				a.markRefused(w, at(s))
				continue
			}
			t.Errorf("at %.1f: %v", s, w)
		}
		if left := a.dueReports(at(s+0.4), allAgents); len(left) > 0 {
			t.Errorf("it is reported again 0.4 s after %.1f: %v", s, left)
		}
	}
	wantDue(307, "")
	wantDue(307.5, "early present at 300;")
	wantDue(312, "")
	// A deregistered agent is not reported.
	note(900, nil)
	wantDue(1000, "")
}

// In any order of contacts and failed reports: the last reported state is the true one, and an
// agent that keeps contact is reported as often as the interval requires, and no
// more often.
func TestTheLastReportIsTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_000_000, 0)
		a := newSchedule(60*time.Second, 10*time.Second, now)
		var lastContact, reported time.Time
		reportedState := unreported
		silent := false // without contact for so long that another server may have reported it lost
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 25).Draw(t, "wait")) * time.Second)
			if rapid.Bool().Draw(t, "contact") {
				silent = silent || now.Sub(lastContact) >= 60*time.Second
				lastContact = now
				a.observe("x", now)
			}
			for _, w := range a.dueReports(now, allAgents) {
				if w.state == present && reportedState == present && !silent && now.Sub(reported) < 10*time.Second {
					t.Fatalf("it is reported after %s", now.Sub(reported))
				}
				if rapid.IntRange(0, 9).Draw(t, "lost") > 0 {
					a.markReported(w, now)
					reportedState, reported, silent = w.state, now, false
				}
			}
			if lastContact.IsZero() {
				if reportedState != unreported {
					t.Fatal("an agent without contact was reported")
				}
				continue
			}
			if len(a.dueReports(now, allAgents)) == 0 &&
				(reportedState == absent) != (now.Sub(lastContact) >= 60*time.Second) {
				t.Fatalf("last contact %s ago, and the reported state is %d", now.Sub(lastContact), reportedState)
			}
		}
	})
}

// Of several servers one repeats that agents are present, and reports lost agents; the
// others report only agents that are new and that they observed themselves.
func TestOneServerReportsAllAgents(t *testing.T) {
	begun := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return begun.Add(time.Duration(s) * time.Second) }
	a := newSchedule(60*time.Second, 60*time.Second, begun)
	countReports := func(s int, d reportScope) (n int) {
		for _, w := range a.dueReports(at(s), d) {
			a.markReported(w, at(s))
			n++
		}
		return n
	}
	const agents = 1000
	observeAll := func(s int) {
		for i := range agents {
			a.observe(work.Consumer(fmt.Sprintf("mc-%d", i)), at(s))
		}
	}
	observeAll(1)
	if n := countReports(1, newContactsHere); n != agents {
		t.Errorf("%d of %d new agents are reported", n, agents)
	}
	observeAll(50)
	if n := countReports(50, newContactsHere); n != 0 {
		t.Errorf("a server that does not have to repeats %d", n)
	}
	most, all := 0, 0
	for s := 61; s < 121; s++ {
		observeAll(s)
		n := countReports(s, allAgents)
		most, all = max(most, n), all+n
	}
	if all != agents || most > 2*agents/60+1 {
		t.Errorf("in a minute %d reports are repeated, at most %d at a time", all, most)
	}
	if n := countReports(1000, newContactsHere); n != 0 {
		t.Errorf("a server that does not have to reports %d lost agents", n)
	}
	if n := countReports(1000, allAgents); n != agents {
		t.Errorf("%d of %d are lost", n, agents)
	}
}
