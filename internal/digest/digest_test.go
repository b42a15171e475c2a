package digest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func drawItems(t *rapid.T, label string) map[string]string {
	return rapid.MapOfN(rapid.StringMatching(`w[0-9]{1,3}`), rapid.StringMatching(`[0-9]`), 0, 60).Draw(t, label)
}

func items(m map[string]string) []Item {
	var list []Item
	for id, v := range m { // in no order: the result must not depend on it
		list = append(list, Item{id, v})
	}
	return list
}

// TestDifferingBucketsContainAllDifferences: for any two sets, equal roots mean equal
// sets, and each item that differs is in a bucket that Differing returns.
func TestDifferingBucketsContainAllDifferences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ours, theirs := drawItems(t, "ours"), drawItems(t, "theirs")
		if rapid.Bool().Draw(t, "alike") {
			theirs = map[string]string{}
			for id, v := range ours {
				theirs[id] = v
			}
			if len(ours) > 0 && rapid.Bool().Draw(t, "but one") {
				theirs[rapid.SampledFrom(sortedKeys(ours)).Draw(t, "which")] = "other"
			}
		}
		bits := rapid.IntRange(0, MaxBits).Draw(t, "bits")
		var differ []string
		for id, v := range ours {
			if w, ok := theirs[id]; !ok || w != v {
				differ = append(differ, id)
			}
		}
		for id := range theirs {
			if _, ok := ours[id]; !ok {
				differ = append(differ, id)
			}
		}
		if same := Root(items(ours)) == Root(items(theirs)); same != (len(differ) == 0) {
			t.Fatalf("the roots are equal: %v; %d items differ", same, len(differ))
		}
		if len(differ) == 0 {
			return
		}
		buckets, err := Differing(Buckets(items(ours), bits), Buckets(items(theirs), bits), bits)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range differ {
			if !slices.Contains(buckets, Bucket(id, bits)) {
				t.Fatalf("item %s differs, and its bucket %d is not returned", id, Bucket(id, bits))
			}
		}
		if len(buckets) > len(differ) {
			t.Fatalf("%d buckets for %d items", len(buckets), len(differ))
		}
	})
}

func sortedKeys(m map[string]string) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func TestDifferentItemsHaveDifferentRoots(t *testing.T) {
	if Root([]Item{{"a", "bc"}}) == Root([]Item{{"ab", "c"}}) {
		t.Error("an id and its value run into each other")
	}
	if Root(nil) == Root([]Item{{"", ""}}) {
		t.Error("no item and an empty item have one root")
	}
}

func TestHashesOfAnotherSizeAreRefused(t *testing.T) {
	for _, c := range []struct {
		hashes []byte
		bits   int
	}{{nil, 0}, {make([]byte, 7), 0}, {make([]byte, 9), 0}, {make([]byte, 8), 1}, {make([]byte, 8), -1},
		{make([]byte, 8<<13), 13}} {
		if _, err := Differing(make([]byte, hashSize<<max(0, c.bits)), c.hashes, c.bits); err != ErrForm {
			t.Errorf("%d bytes, %d bits: %v", len(c.hashes), c.bits, err)
		}
	}
	// Equal hashes are no error: Differing returns all buckets.
	if b, err := Differing(make([]byte, 16), make([]byte, 16), 1); err != nil || len(b) != 2 {
		t.Errorf("%v %v", b, err)
	}
}

func TestBucketsHaveSimilarSizes(t *testing.T) {
	const n = 10_000
	bits := Bits(n)
	counts := make([]int, 1<<bits)
	for i := range n {
		counts[Bucket(fmt.Sprintf("work-%d", i), bits)]++
	}
	if most := slices.Max(counts); most > 5*bucketItems {
		t.Errorf("%d buckets, one has %d", len(counts), most)
	}
	if Bits(0) != 0 || Bits(1<<30) != MaxBits {
		t.Errorf("bits of nothing %d, of much %d", Bits(0), Bits(1<<30))
	}
}

func BenchmarkRoot10000(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	var list []Item
	for range 10_000 {
		list = append(list, Item{fmt.Sprintf("%016x-%016x", r.Uint64(), r.Uint64()), "1 0123456789abcdef"})
	}
	for b.Loop() {
		r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		Root(list)
	}
}
