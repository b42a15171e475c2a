package hosting

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// powerZero is the time from which tests count durations.
var powerZero = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const idleInTests = 10 * time.Minute

// TestPower reads testdata/power. Each case is the life of a plane; each line is a
// time with its events, and its output the decision at that time. The next line
// begins with the decision carried out, as hosting would have done it:
//
//	decide [at=10m]        WHAT IS NEWS
//	  hibernated | awake   the order of the spec
//	  open=N               connections; last is set when the last one ends
//	  asked                a Wake
//	  ready                it serves
//	  died                 its process ended
//	  taken                the router has taken the route
//	  restart              hosting begins anew, knowing nothing but what runs
func TestPower(t *testing.T) {
	datadriven.Walk(t, "testdata/power", func(t *testing.T, path string) {
		var p power
		var now time.Time
		var last powerDecision
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "plane" {
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			p, now, last = power{Last: powerZero}, powerZero, powerDecision{}
			var out strings.Builder
			for line := range strings.Lines(d.Input) {
				words := strings.Fields(line)
				at, err := time.ParseDuration(words[0])
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				now = powerZero.Add(at)
				for _, news := range words[1:] {
					p.observe(t, news, now, last)
				}
				decision := p.decide(now, idleInTests)
				fmt.Fprintf(&out, "%-8s %s\n", words[0], decision)
				p.carryOut(decision)
				last = decision
			}
			return out.String()
		})
	})
}

// observe applies an event to the inputs of the decision. last is the decision before the event.
func (p *power) observe(t *testing.T, news string, now time.Time, last powerDecision) {
	var n int
	switch {
	case news == "hibernated":
		p.Hibernated, p.Ordered = true, now
	case news == "awake":
		p.Hibernated, p.Ordered = false, time.Time{}
	case news == "asked":
		p.Asked = now
	case news == "ready":
		p.Ready, p.HasBeenReady = now, true
	case news == "died":
		p.Running, p.Ready = false, time.Time{}
	case news == "taken":
		p.Closed = last.Shut
	case news == "restart":
		p.Ordered, p.Asked, p.Last = time.Time{}, time.Time{}, now
	case func() bool { _, err := fmt.Sscanf(news, "open=%d", &n); return err == nil }():
		if p.Open > 0 && n == 0 {
			p.Last = now
		}
		p.Open = n
	default:
		t.Fatalf("unknown news %q", news)
	}
}

// carryOut makes the decision true.
func (p *power) carryOut(d powerDecision) {
	if !d.Run {
		p.Ready = time.Time{}
	}
	p.Running = d.Run
	p.Closed = p.Closed && d.Shut
}

func (d powerDecision) String() string {
	text := string(d.State)
	if d.Run {
		text += " run"
	}
	if d.Shut {
		text += " shut"
	}
	if d.Again > 0 {
		text += " again=" + d.Again.String()
	}
	return text
}

// After any events in any order: a plane with demand is awake, no open connection is cut, and an
// idle plane sleeps.
func TestPowerInEveryOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, now, last := power{Last: powerZero}, powerZero, powerDecision{}
		step := func(news ...string) powerDecision {
			for _, n := range news {
				p.observe(nil, n, now, last)
			}
			d := p.decide(now, idleInTests)
			if !p.Hibernated && (!d.Run || d.Shut) {
				t.Fatalf("not hibernated, but %s", d)
			}
			if p.Running && p.Open > 0 && !d.Run {
				t.Fatalf("a connection is open, but %s", d)
			}
			if p.Running && !d.Run && !p.Closed {
				t.Fatalf("stopped before the router knew: %s", d)
			}
			if d.Run != (d.State != asleep) {
				t.Fatalf("%s", d)
			}
			p.carryOut(d)
			last = d
			if again := p.decide(now, idleInTests); !d.Run && again.Run {
				t.Fatalf("%s, and at once %s", d, again)
			}
			return d
		}
		news := rapid.SampledFrom([]string{"hibernated", "awake", "asked", "ready", "died", "taken", "restart",
			"open=0", "open=2"})
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 700).Draw(t, "seconds")) * time.Second)
			n := news.Draw(t, "news")
			if (n == "ready" || n == "open=2") && !p.Running || n == "ready" && !p.Ready.IsZero() {
				continue // not without a process
			}
			step(n)
		}
		// Left alone.
		step("open=0", "restart")
		if p.Running && p.Ready.IsZero() {
			step("ready")
		}
		now = now.Add(idleInTests + time.Second)
		step()
		d := step("taken")
		if want := map[bool]powerState{true: asleep, false: awake}[p.Hibernated && p.HasBeenReady]; d.State != want &&
			!(d.State == waking && !p.HasBeenReady) {
			t.Fatalf("comes to rest %s, want %s", d, want)
		}
	})
}
