package delivery

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"atoll.dev/api/work"

	"pgregory.net/rapid"
)

// TestDeletionsThatNobodyAnswersDelayNothing: however many deletions are
// pending, after a restart of the server or of the broker, a change goes out
// with the next batch but one, also to a consumer that has deletions pending; a
// live agent's deletion goes out when each lane of deletions has had its turn;
// the repetitions of all together keep to the pace, and each is repeated in its
// time.
func TestDeletionsThatNobodyAnswersDelayNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		consumers := rapid.IntRange(1, 40).Draw(rt, "consumers")
		each := rapid.IntRange(1, 200).Draw(rt, "deletions of each")
		rate := rapid.IntRange(5, 100).Draw(rt, "rate")
		restarted := rapid.Bool().Draw(rt, "restarted")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		m := New(Config{DeleteRate: rate, Jitter: random.Float64})
		start := time.Unix(0, 0)
		now := start
		last := map[key]time.Time{}
		for c := range consumers {
			for d := range each {
				w := Work{Consumer: work.Consumer(fmt.Sprint("absent", c)), ID: work.ID(fmt.Sprint("d", d)), Generation: 1,
					Deleting: true}
				attempts := 0
				if restarted {
					attempts = 1
				}
				m.Recover(now, w, attempts)
				last[key{w.Consumer, w.ID}] = start
			}
		}
		m.Connect()
		const batch = 64
		repeated := 0
		longest := time.Duration(0)
		var waiting *Work
		batches, changes := 0, 0
		step := func() {
			sends := m.Next(now, batch)
			for _, s := range sends {
				m.EndSend(now, s, s.Work, Published)
				if waiting != nil && s.Work == *waiting {
					m.Acknowledge(s.Consumer, s.ID, s.Generation)
					if s.Deleting {
						m.Forget(s.Work)
					}
					waiting = nil
				}
				k := key{s.Consumer, s.ID}
				if at, ok := last[k]; ok && s.Deleting {
					if s.Attempt > 1 {
						repeated++
					}
					longest = max(longest, now.Sub(at))
					last[k] = now
				}
			}
			if waiting != nil {
				most := 2
				if waiting.Deleting { // lanes of deletions take turns
					most += consumers * m.cfg.Burst / batch * 2
				}
				if batches++; batches > most {
					rt.Fatalf("%v waits behind deletions for the %dth batch", *waiting, batches)
				}
			}
		}
		const span = 20 * time.Minute
		for now.Sub(start) < span {
			if waiting == nil && now.Sub(start) > time.Duration(changes)*7*time.Second {
				changes++
				w := Work{Consumer: work.Consumer(fmt.Sprint("absent", changes%consumers)), ID: work.ID(fmt.Sprint("c", changes)),
					Generation: 1}
				if changes%2 == 0 {
					w.Consumer, w.Deleting = "live", changes%4 == 0
				}
				waiting, batches = &w, 0
				m.Add(w)
			}
			step()
			for waiting != nil {
				step()
			}
			if random.IntN(300) == 0 {
				m.Disconnect()
				m.Connect()
			}
			now = now.Add(time.Second)
		}
		if most := rate * int(span/time.Second+2); repeated > most {
			rt.Fatalf("%d repetitions in %v at %d a second", repeated, span, rate)
		}
		total := consumers * each
		bound := 2*m.cfg.DeleteMax + 2*time.Duration(total/rate)*time.Second + time.Duration(
			each/m.cfg.Probes+1)*m.cfg.DeleteMax
		if longest > bound {
			rt.Fatalf("a deletion was not repeated for %v, %d pending at %d a second", longest, total, rate)
		}
	})
}

// TestAHundredThousandDeletions does so with many, once, and says what it
// costs.
func TestAHundredThousandDeletions(t *testing.T) {
	m := New(Config{})
	now := time.Unix(0, 0)
	for c := range 1000 {
		for d := range 100 {
			m.Recover(now, Work{Consumer: work.Consumer(fmt.Sprint("absent", c)), ID: work.ID(fmt.Sprint("d", d)), Generation: 1,
				Deleting: true}, 3)
		}
	}
	m.Connect()
	begin, sent := time.Now(), 0
	for second := range 600 {
		now = now.Add(time.Second)
		create := Work{Consumer: work.Consumer(fmt.Sprint("absent", second)), ID: "new", Generation: 1}
		m.Add(create)
		first := true
		for {
			sends := m.Next(now, 64)
			if len(sends) == 0 {
				break
			}
			for _, s := range sends {
				m.EndSend(now, s, s.Work, Published)
				if s.Work == create {
					m.Acknowledge(s.Consumer, s.ID, s.Generation)
					if !first {
						t.Errorf("second %d: the new work is not in the first batch", second)
					}
				}
				if s.Deleting {
					sent++
				}
			}
			first = false
		}
	}
	if sent > 601*m.cfg.DeleteRate {
		t.Errorf("%d repetitions in ten minutes", sent)
	}
	t.Logf("ten minutes of 100,000 unanswered deletions: %d repetitions, deciding took %v", sent,
		time.Since(begin).Round(time.Millisecond))
}

// TestThePaceOfDeletionsHoldsNoLaneBack: a lane whose repetitions the pace of all deletions
// cuts short continues as soon as the pace allows; it does not begin its own pause with the
// others unsent.
func TestThePaceOfDeletionsHoldsNoLaneBack(t *testing.T) {
	const works = 10
	m := New(Config{DeleteRate: 1})
	start := time.Unix(0, 0)
	for d := range works {
		m.Recover(start, Work{Consumer: "absent", ID: work.ID(fmt.Sprint("d", d)), Generation: 1, Deleting: true}, 1)
	}
	m.Connect()
	repeated := map[string]bool{}
	for second := range 2 * works {
		now := start.Add(time.Duration(second) * time.Second)
		for _, s := range m.Next(now, 64) {
			repeated[string(s.ID)] = true
			m.EndSend(now, s, s.Work, Published)
		}
	}
	if len(repeated) != works {
		t.Errorf("%d of %d deletions were repeated in %d seconds, at one a second", len(repeated), works, 2*works)
	}
}
