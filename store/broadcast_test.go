package store

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

func numbered(n int) []Document {
	docs := make([]Document, n)
	for i := range docs {
		docs[i] = Document{Kind: "Thing", ID: fmt.Sprint(i), Version: 1}
	}
	return docs
}

func everyChange(*Change) bool { return true }

// A subscriber that reads nothing is ended with a reason; another one gets everything.
func TestASlowSubscriberIsEnded(t *testing.T) {
	b := (&Store{opts: Options{}.withDefaults()}).NewBroadcast(nil)
	slow, quick := b.Subscribe(everyChange), b.Subscribe(everyChange)
	defer slow.Close()
	defer quick.Close()
	got := 0
	for n := range queueChanges + 1 {
		b.Publish(Batch{Documents: numbered(1), Cursor: "c"})
		if n%100 == 0 {
			rounds, err := quick.Take()
			if err != nil {
				t.Fatal(err)
			}
			got += len(rounds)
		}
	}
	if _, err := slow.Take(); !errors.Is(err, ErrTooSlow) || !errors.Is(slow.Reason(), ErrTooSlow) {
		t.Errorf("slow: %v", err)
	}
	select {
	case <-slow.Ended():
	default:
		t.Error("the channel of Ended is not closed")
	}
	if _, err := quick.Take(); err != nil || got < queueChanges-100 || quick.Reason() != nil {
		t.Errorf("quick: %d, %v", got, err)
	}
}

// One document may be larger than a queue, several may not.
func TestAQueueIsBoundedInBytes(t *testing.T) {
	b := (&Store{opts: Options{}.withDefaults()}).NewBroadcast(nil)
	sub := b.Subscribe(everyChange)
	defer sub.Close()
	large := []Document{{ID: "a", Version: 1, Wire: make([]byte, queueBytes+1)}}
	b.Publish(Batch{Documents: large})
	if rounds, err := sub.Next(t.Context()); err != nil || len(rounds) != 1 {
		t.Fatalf("%v, %v", rounds, err)
	}
	b.Publish(Batch{Documents: large})
	b.Publish(Batch{Documents: large})
	if _, err := sub.Next(t.Context()); !errors.Is(err, ErrTooSlow) {
		t.Error(err)
	}
}

// Rounds without changes report the feed's position; only the latest of them is kept.
func TestEmptyRoundsAreMerged(t *testing.T) {
	b := (&Store{opts: Options{}.withDefaults()}).NewBroadcast(nil)
	sub := b.Subscribe(func(c *Change) bool { return c.ID != "other" })
	defer sub.Close()
	b.Publish(Batch{Documents: []Document{{ID: "a", Version: 1}}, Cursor: "1"})
	b.Publish(Batch{Cursor: "2"})
	b.Publish(Batch{Documents: []Document{{ID: "other", Version: 1}}, Cursor: "3"})
	rounds, err := sub.Take()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rounds {
		got = append(got, fmt.Sprintf("%d changes, round %d, cursor %s", len(r.Changes), r.Number, r.Cursor))
	}
	if want := []string{"1 changes, round 1, cursor 1", "0 changes, round 3, cursor 3"}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	b.Fail(ErrGone)
	if _, err := sub.Take(); !errors.Is(err, ErrGone) {
		t.Error(err)
	}
}
