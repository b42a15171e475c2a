package maestro

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestI6AFloodWaitsForNobodyElse: consumers are served in turn, each has a share,
// and the events of one consumer are with one worker at a time.
func TestI6AFloodWaitsForNobodyElse(t *testing.T) {
	q := newFairQueue[string](shares{items: 100, bytes: 1 << 20, allItems: 400, allBytes: 1 << 20, turn: 4})
	put := func(consumer, value string) bool {
		_, ok := q.put(consumer, "", 1, value, nil)
		return ok
	}
	refused := 0
	for n := range 1000 {
		if !put("flood", fmt.Sprint(n)) {
			refused++
		}
	}
	if refused != 900 {
		t.Errorf("%d of 1000 events of one agent were refused", refused)
	}
	for n := range 50 {
		if !put(fmt.Sprint("polite", n), "status") {
			t.Errorf("agent %d is refused", n)
		}
	}
	first := q.tryTake(16)
	if len(first.items) != 16 || len(first.consumers) != 13 {
		t.Errorf("%d events of %d consumers", len(first.items), len(first.consumers))
	}
	seen := map[string]bool{}
	for _, c := range first.consumers {
		seen[c] = true
	}
	second := q.tryTake(64)
	for _, c := range second.consumers {
		if seen[c] {
			t.Errorf("two workers have events of %s", c)
		}
	}
	if len(second.consumers) != 38 {
		t.Errorf("the others wait: %d were served", len(second.consumers))
	}
	q.done(second)
	q.done(first)
	next, order := 4, 0
	for q.length > 0 {
		taken := q.tryTake(7)
		for _, v := range taken.items {
			if v != fmt.Sprint(next+order) {
				t.Fatalf("%s came instead of %d", v, next+order)
			}
			order++
		}
		got := q.done(taken)
		if (q.length == 0) != (len(got) == 1) {
			t.Errorf("%d are left, and %q are told that events were refused", q.length, got)
		}
	}
	if len(q.queues) != 0 || q.bytes != 0 {
		t.Errorf("%d queues and %d bytes are left", len(q.queues), q.bytes)
	}
}

// Where all queues together are full, a consumer that has little still gets in.
func TestAFullFairQueueHasRoomForWhoHasLittle(t *testing.T) {
	q := newFairQueue[int](shares{items: 100, bytes: 1 << 20, allItems: 150, allBytes: 1 << 20, turn: 4})
	for n := range 200 {
		q.put("a", "", 1, n, nil)
		q.put("b", "", 1, n, nil)
	}
	if q.length > 160 {
		t.Errorf("%d events wait", q.length)
	}
	for n := range 10 {
		if _, ok := q.put("c", "", 1, n, nil); !ok {
			t.Errorf("event %d of the third consumer is refused", n)
		}
	}
}

// A later event takes the place of an earlier one of its key while that waits.
func TestAFairQueueKeepsTheLatest(t *testing.T) {
	q := newFairQueue[int](shares{items: 4, bytes: 100, allItems: 10, allBytes: 100, turn: 4})
	newer := func(n int) func(int) bool { return func(old int) bool { return old < n } }
	for n := range 1000 {
		if _, ok := q.put("a", "w", 1, n, newer(n)); !ok {
			t.Fatalf("event %d is refused", n)
		}
	}
	if old, ok := q.put("a", "w", 1, 5, newer(5)); old != nil || !ok {
		t.Error("an older one takes the place of a newer one")
	}
	taken := q.tryTake(10)
	if fmt.Sprint(taken.items) != "[999 5]" {
		t.Errorf("%v are left", taken.items)
	}
	if _, ok := q.put("a", "w", 1, 1000, newer(1000)); !ok || len(q.tryTake(1).items) != 0 {
		t.Error("what comes while a worker has the last one does not wait for it")
	}
	q.done(taken)
	if got := q.tryTake(1); fmt.Sprint(got.items) != "[1000]" {
		t.Errorf("%v come then", got.items)
	}
}

// Workers sleep while there is nothing, and none sleeps while there is something.
func TestFairQueueWakesItsWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFairQueue[int](shares{items: 1000, bytes: 1 << 20, allItems: 10_000, allBytes: 1 << 20, turn: 1})
		const workers, consumers, each = 4, 40, 10
		got := make(chan int, consumers*each)
		for range workers {
			go func() {
				for {
					batch := q.take(t.Context(), 1)
					if len(batch.items) == 0 {
						return
					}
					<-time.After(time.Second) // virtual time
					got <- batch.items[0]
					q.done(batch)
				}
			}()
		}
		synctest.Wait()
		begun := time.Now()
		for n := range each {
			for c := range consumers {
				q.put(fmt.Sprint(c), "", 1, n, nil)
			}
		}
		for range consumers * each {
			<-got
		}
		if took := time.Since(begun); took > consumers*each/workers*time.Second+time.Second {
			t.Errorf("%d workers took %v for %d seconds of work", workers, took, consumers*each)
		}
	})
}
