package cluster

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

const gib = 1 << 30

func TestASizeFollowsNodesAndMemory(t *testing.T) {
	now := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name string
		had  Size
		use  SizeUse
		want Size
	}{
		{"a new plane", "", SizeUse{Memory: gib / 5}, Small},
		{"before the first measurement", "", SizeUse{Nodes: 11}, Medium},
		{"as many nodes as a size has", "", SizeUse{Nodes: 10, Memory: gib / 5}, Small},
		{"more nodes than medium has", Small, SizeUse{Nodes: 51, Memory: gib / 5}, Large},
		{"more nodes than any size has", Small, SizeUse{Nodes: 5000, Memory: gib / 5}, Large},
		{"below the bound", Small, SizeUse{Memory: gib * 59 / 100}, Small},
		{"above the bound", Small, SizeUse{Memory: gib * 61 / 100}, Medium},
		{"above two bounds", Small, SizeUse{Memory: 3 * gib}, Large},
		{"ended for want of memory", Small, SizeUse{Memory: 0, OutOfMemory: true}, Medium},
		{"ended in the largest size", Large, SizeUse{OutOfMemory: true}, Large},
		{"little use for a moment", Large, SizeUse{Memory: gib / 5}, Large},
	} {
		if got := (SizeNeed{Wanted: c.had}).Next(c.use, now).Wanted; got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestASizeBecomesSmallerAfterADayOfLowUse(t *testing.T) {
	now := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	low, high := SizeUse{Memory: gib / 5}, SizeUse{Memory: gib}
	n := SizeNeed{Wanted: Large}.Next(low, now)
	n = n.Next(low, now.Add(23*time.Hour))
	n = n.Next(high, now.Add(23*time.Hour+time.Minute)) // neither low for medium nor high for large
	n = n.Next(low, now.Add(24*time.Hour))
	if n.Wanted != Large {
		t.Fatalf("one day without a whole day of low use: %q", n.Wanted)
	}
	n = n.Next(low, now.Add(48*time.Hour))
	if n.Wanted != Medium {
		t.Fatalf("a whole day of low use: %q, want one size less", n.Wanted)
	}
	n = n.Next(SizeUse{}, now.Add(49*time.Hour)) // not measured
	n = n.Next(low, now.Add(50*time.Hour))
	if n = n.Next(low, now.Add(73*time.Hour)); n.Wanted != Medium {
		t.Fatalf("23 hours after a time without measurements: %q", n.Wanted)
	}
	if n = n.Next(low, now.Add(75*time.Hour)); n.Wanted != Small {
		t.Fatalf("another day: %q", n.Wanted)
	}
}

// Whatever a plane uses, its size does not flap: each change to a smaller one comes a day after the change before, and
// changes to larger ones are at most two more than two for each of these. A use that the size has no room for is never
// left waiting.
func TestASizeDoesNotFlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
		var n SizeNeed
		var changed time.Time
		ups, downs := 0, 0
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 6*3600).Draw(t, "seconds")) * time.Second)
			u := SizeUse{Nodes: rapid.IntRange(0, 60).Draw(t, "nodes"),
				Memory: rapid.Int64Range(0, 3*gib).Draw(t, "memory"), OutOfMemory: rapid.IntRange(0, 50).Draw(t, "oom") == 0}
			next := n.Next(u, now)
			switch c := next.Wanted.Compare(n.Wanted); {
			case n.Wanted == "":
				changed = now
			case c > 0:
				ups, changed = ups+1, now
			case c < -1:
				t.Fatalf("from %s to %s in one step", n.Wanted, next.Wanted)
			case c < 0:
				if now.Sub(changed) < downAfter {
					t.Fatalf("smaller %s after the change before", now.Sub(changed))
				}
				downs, changed = downs+1, now
			}
			if l := next.Wanted.Limits(); next.Wanted != Large && (u.Memory > l.Memory || u.Nodes > l.Nodes) {
				t.Fatalf("%+v has the size %s", u, next.Wanted)
			}
			n = next
		}
		if ups > downs+len(Sizes)-1 {
			t.Fatalf("%d changes to a larger size, and %d to a smaller one", ups, downs)
		}
	})
}

// A use that does not change settles after its first measurement, whatever the size was, but for changes to smaller
// sizes; after those it never changes again.
func TestASteadyUseHasOneSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
		u := SizeUse{Nodes: rapid.IntRange(0, 60).Draw(t, "nodes"), Memory: rapid.Int64Range(1, 3*gib).Draw(t, "memory")}
		n := SizeNeed{Wanted: rapid.SampledFrom(Sizes).Draw(t, "had")}.Next(u, now)
		for hour := range 24 * 7 {
			before := n.Wanted
			n = n.Next(u, now.Add(time.Duration(hour)*time.Hour))
			if n.Wanted.Compare(before) > 0 || hour > 72 && n.Wanted != before {
				t.Fatalf("from %s to %s after %d hours", before, n.Wanted, hour)
			}
		}
	})
}

func TestAnOrderOfASmallerSizeEndsNoPlane(t *testing.T) {
	for _, c := range []struct{ had, ordered, wanted, want Size }{
		{"", Small, "", Small},         // a new plane
		{Small, Medium, "", Medium},    // larger: at once
		{Large, Small, "", Large},      // not measured yet
		{Large, Small, Large, Large},   // it needs what it has
		{Large, Small, Medium, Medium}, // it needs more than ordered
		{Large, Small, Small, Small},
		{Medium, Small, Large, Medium}, // it needs more than both, and has no order for that
		{Medium, "", Small, Medium},    // no order
		{Medium, "huge", Small, Medium},
	} {
		if got := EffectiveSize(c.had, c.ordered, c.wanted); got != c.want {
			t.Errorf("had %q, ordered %q, wanted %q: %q, want %q", c.had, c.ordered, c.wanted, got, c.want)
		}
	}
}
