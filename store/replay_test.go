package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// anySnapshot draws a snapshot of a small history of transactions.
func anySnapshot(t *rapid.T, label string) position {
	xmax := rapid.Uint64Range(1, 12).Draw(t, label+" xmax")
	var xip []string
	for x := uint64(1); x < xmax; x++ {
		if rapid.Bool().Draw(t, fmt.Sprint(label, " in progress ", x)) {
			xip = append(xip, fmt.Sprint(x))
		}
	}
	p, err := newPosition("life", fmt.Sprintf("1:%d:%s", xmax, strings.Join(xip, ",")))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestASnapshotIsCoveredWhenTheOtherSeesAllOfIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, q := anySnapshot(t, "p"), anySnapshot(t, "q")
		want := true
		for x := uint64(1); x < 20; x++ {
			want = want && (!p.sees(x) || q.sees(x))
		}
		if got := p.isCoveredBy(q); got != want {
			t.Fatalf("%s within %s: %v, want %v", p.snapshot, q.snapshot, got, want)
		}
	})
	p, _ := newPosition("life", "5:5:")
	q, _ := newPosition("another", "5:5:")
	if p.isCoveredBy(q) || q.isCoveredBy(p) || (position{}).isCoveredBy(p) {
		t.Error("covers compared positions of two incarnations")
	}
}

// TestI4TheReplayHasEveryUnseenChange runs transactions that overlap as they like, a feed
// that reads at some moments, and watches that come with a snapshot of any moment: from memory each
// sees the latest state of every document that its snapshot does not see, or it gets the error that its
// cursor is too old.
func TestI4TheReplayHasEveryUnseenChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			next      = uint64(1)
			open      []uint64
			lockedBy  = map[string]uint64{} // a document is written by one transaction at a time
			committed = map[string]uint64{} // who wrote a document last
			versions  = map[string]int64{}
			snapshots []position
			memory    = replay{maxChanges: rapid.IntRange(1, 6).Draw(t, "remembered changes"), maxBytes: 1 << 20}
			feed      position
		)
		now := func() position {
			xip := slices.Sorted(slices.Values(open))
			xmin := next
			if len(xip) > 0 {
				xmin = xip[0]
			}
			var texts []string
			for _, x := range xip {
				texts = append(texts, fmt.Sprint(x))
			}
			p, err := newPosition("life", fmt.Sprintf("%d:%d:%s", xmin, next, strings.Join(texts, ",")))
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		feed = now()
		memory.begin(feed)
		snapshots = append(snapshots, feed)
		read := func() {
			at := now()
			r := Round{at: at}
			for _, id := range []string{"a", "b", "c"} {
				if xid := committed[id]; xid != 0 && !feed.sees(xid) {
					r.Changes = append(r.Changes, &Change{Document: Document{ID: id, Version: versions[id]}, xid: xid})
				}
			}
			memory.add(r)
			feed = at
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0: // a transaction begins and writes a document that no other holds
				id := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "document")
				if lockedBy[id] == 0 {
					lockedBy[id] = next
				}
				open = append(open, next)
				next++
			case 1: // one ends
				if len(open) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which ends")
				xid := open[i]
				open = slices.Delete(open, i, i+1)
				for id, by := range lockedBy {
					if by == xid {
						if rapid.Bool().Draw(t, "commits") {
							committed[id] = xid
							versions[id]++
						}
						lockedBy[id] = 0
					}
				}
			case 2:
				snapshots = append(snapshots, now())
			default:
				read()
			}
		}
		read()
		for _, cursor := range snapshots {
			rounds, known := memory.since(cursor)
			if !known {
				if memory.base.isCoveredBy(cursor) {
					t.Fatalf("%s is not known, although %s is within it", cursor.snapshot, memory.base.snapshot)
				}
				continue
			}
			got := map[string]int64{}
			for _, c := range changesAfter(rounds, cursor, func(*Change) bool { return true }) {
				if _, twice := got[c.ID]; twice {
					t.Fatalf("%s comes twice", c.ID)
				}
				got[c.ID] = c.Version
			}
			for id, xid := range committed {
				if cursor.sees(xid) {
					if got[id] != 0 {
						t.Fatalf("since %s %s comes, although that sees it", cursor.snapshot, id)
					}
				} else if got[id] != versions[id] {
					t.Fatalf("since %s %s comes in version %d, want %d", cursor.snapshot, id, got[id], versions[id])
				}
			}
		}
	})
}

func TestTheReplayIsBounded(t *testing.T) {
	r := replay{maxChanges: 10, maxBytes: 1000}
	start, _ := newPosition("life", "1:1:")
	r.begin(start)
	for i := range 1000 {
		at, _ := newPosition("life", fmt.Sprintf("%d:%d:", i+2, i+2))
		r.add(Round{Changes: []*Change{{xid: uint64(i + 1)}}, at: at, size: 300})
		if len(r.rounds) > 8 || r.bytes > 1000 || r.changes > 10 {
			t.Fatalf("after %d rounds there are %d, with %d changes and %d bytes", i+1, len(r.rounds), r.changes,
				r.bytes)
		}
	}
	if _, known := r.since(start); known {
		t.Error("a cursor from the beginning is known after all was dropped")
	}
	at, _ := newPosition("life", "1000:1000:")
	if rounds, known := r.since(at); !known || len(rounds) != 1 {
		t.Errorf("since the last round but one: %d, %v", len(rounds), known)
	}
	at, _ = newPosition("life", "5000:5000:")
	if rounds, known := r.since(at); !known || len(rounds) != 0 {
		t.Errorf("since the future: %d, %v", len(rounds), known)
	}
}
