package fleet

import (
	"fmt"
	"slices"
	"testing"

	"atoll.dev/cluster"
)

func TestASizeTakesTheRoomOfItsUnits(t *testing.T) {
	b := start(t)
	ctx := t.Context()
	mc := b.mc("one", `{"capacity":{"planes":8,"memory_mib":2800}}`, nil)
	first, second, third := b.cluster("first", `{}`), b.cluster("second", `{}`), b.cluster("third", `{}`)
	resize := func(id string, size cluster.Size) string {
		t.Helper()
		p, err := b.Resize(ctx, cluster.ID(id), size)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(p.Size, " ", p.WantedSize, " ", p.Reserved)
	}
	checkEqual(t, "a new plane", string(b.place(first).Size), "small")
	b.place(second)
	checkEqual(t, "with room", resize(first, cluster.Large), "large  map[memory_mib:2100 planes:6]")
	checkEqual(t, "the management cluster", b.usage(mc, "memory_mib"), "350 free, 2450 reserved by 2")
	b.eventually("work is requested for the plane with the new size", func() bool {
		return slices.Contains(b.requestedClusters(), first)
	})
	checkEqual(t, "without room", resize(second, cluster.Medium), "small medium map[memory_mib:350 planes:1]")
	checkEqual(t, "again", resize(second, cluster.Medium), "small medium map[memory_mib:350 planes:1]")
	checkEqual(t, "its use has become less", resize(second, cluster.Small), "small  map[memory_mib:350 planes:1]")
	checkEqual(t, "and more", resize(second, cluster.Medium), "small medium map[memory_mib:350 planes:1]")
	checkEqual(t, "nothing was reserved", b.usage(mc, "planes"), "1 free, 7 reserved by 2")
	checkEqual(t, "another POST leaves the size as it is", string(b.place(first).Size), "large")

	// A plane that becomes smaller makes room: for what waits for a place first, and for a larger size.
	third2 := b.mc("two", `{"capacity":{"planes":0}}`, nil)
	b.place(third)
	checkEqual(t, "smaller", resize(first, cluster.Small), "small  map[memory_mib:350 planes:1]")
	b.eventually("work is requested for the plane that had no room", func() bool {
		return slices.Contains(b.requestedClusters(), second)
	})
	checkEqual(t, "now with room", resize(second, cluster.Medium), "medium  map[memory_mib:1050 planes:3]")
	checkEqual(t, "an empty one", b.usage(third2, "planes"), "0 free, 0 reserved by 0")

	_, err := b.Resize(ctx, cluster.ID(first), "huge")
	checkError(t, "an unknown size", err, 400, codeInvalid)
	if _, err := b.Delete(ctx, clustersPlural, second, ""); err != nil {
		t.Fatal(err)
	}
	_, err = b.Resize(ctx, cluster.ID(second), cluster.Large)
	checkError(t, "a cluster that is being deleted", err, 409, codeState)
	if err := b.Release(ctx, cluster.ID(second)); err != nil {
		t.Fatal(err)
	}
	checkEqual(t, "a released plane gives back all units", b.usage(mc, "memory_mib"), "2100 free, 700 reserved by 2")
}

// A plane that was placed when the region reserved other amounts keeps its own as the unit.
func TestGrowthIsInUnitsOfThePlane(t *testing.T) {
	amounts := Amounts{"planes": 1, "memory_mib": 400}
	sizes := slices.Concat(cluster.Sizes, []cluster.Size{cluster.Small, cluster.Large, cluster.Medium, ""})
	now, had := amounts, cluster.Size("")
	for _, next := range sizes {
		if next == "" {
			next = cluster.Small
		}
		now, had = plus(now, growth(now, had, next), 1), next
		if want := 400 * next.Limits().Units; now["memory_mib"] != want || now["planes"] != next.Limits().Units {
			t.Errorf("%s: %v, want %d MiB", next, now, want)
		}
	}
	checkEqual(t, "the amounts at the end", fmt.Sprint(now), fmt.Sprint(amounts))
}
