package agent

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever the changes and the clock, a bucket gives no more than its burst
// and its rate, gives at once after a rest, and keeps its word about when.
func TestATokenBucketKeepsItsRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b tokenBucket
		now := noon
		var given []time.Time
		for range rapid.IntRange(1, 200).Draw(t, "changes") {
			now = now.Add(time.Duration(rapid.IntRange(0, 700).Draw(t, "ms")) * time.Millisecond)
			next, ok := b.take(now)
			if ok {
				given = append(given, now)
				continue
			}
			if !next.After(now) || next.After(now.Add(reportInterval)) {
				t.Fatalf("at %v the next token is at %v", now, next)
			}
			if rapid.Bool().Draw(t, "wait") {
				now = next
				if _, ok := b.take(now); !ok {
					t.Fatal("there is no token at the announced time")
				}
				given = append(given, now)
			}
		}
		for i := range given {
			for j := i; j < len(given); j++ {
				if most := reportBurst + int(given[j].Sub(given[i])/reportInterval) + 1; j-i+1 > most {
					t.Fatalf("%d in %v", j-i+1, given[j].Sub(given[i]))
				}
			}
		}
		back := now.Add(-time.Hour)
		if _, ok := b.take(back); !ok {
			t.Fatal("a clock that steps back stops it")
		}
		if _, ok := b.take(now.Add(time.Hour)); !ok {
			t.Fatal("nothing after a rest")
		}
	})
}
