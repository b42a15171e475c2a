package idle

import (
	"slices"
	"testing"
	"time"
)

// TestDecide walks through the life of a plane. Each step is a measurement, by the processor time that was used since
// the step before.
func TestDecide(t *testing.T) {
	type step struct {
		after time.Duration
		used  time.Duration
		seen  event
		want  mode
	}
	const s, ms = time.Second, time.Millisecond
	many := func(n int, one step) (all []step) {
		for range n {
			all = append(all, one)
		}
		return all
	}
	quiet, quietAndIdle := step{s, 15 * ms, tick, busy}, step{s, 15 * ms, tick, idle}
	becomesIdle := append(many(9, quiet), quietAndIdle)
	for name, steps := range map[string][]step{
		"a quiet plane becomes idle after ten seconds": becomesIdle,
		"a plane that works now and then has ten more": slices.Concat(
			many(5, quiet), many(1, step{s, 600 * ms, tick, busy}), many(13, quiet), many(1, quietAndIdle)),
		"a plane that works a little stays busy":     many(60, step{s, 60 * ms, tick, busy}),
		"an idle plane stays idle for a little work": slices.Concat(becomesIdle, many(60, step{s, 300 * ms, tick, idle})),
		"an idle plane becomes busy after a second of much work": slices.Concat(
			becomesIdle, many(30, quietAndIdle), many(1, step{s, 340 * ms, tick, busy})),
		"an idle plane becomes busy at once by a crowd": slices.Concat(
			becomesIdle, many(1, step{30 * ms, 2 * ms, crowd, busy})),
		"a busy plane is observed anew after a crowd": slices.Concat(
			many(8, quiet), many(1, step{s, 15 * ms, crowd, busy}), many(9, quiet), many(1, quietAndIdle)),
		"a late measurement": {{11 * s, 100 * ms, tick, idle}, {20 * s, 3 * s, tick, idle}, {20 * s, 9 * s, tick, busy}},
		"two measurements at the same moment": slices.Concat(
			becomesIdle, many(1, step{0, 0, tick, idle}), many(1, step{0, 0, crowd, busy})),
	} {
		t.Run(name, func(t *testing.T) {
			now := usage{at: time.Unix(1000, 0), used: 5 * time.Second}
			st := state{busy, now}
			for i, step := range steps {
				now = usage{now.at.Add(step.after), now.used + step.used}
				if st = decide(st, now, step.seen); st.mode != step.want {
					t.Fatalf("step %d, %v after the start: %s, want %s", i, now.at.Sub(time.Unix(1000, 0)), st.mode, step.want)
				}
			}
		})
	}
}
