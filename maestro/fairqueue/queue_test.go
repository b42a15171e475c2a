package fairqueue

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/api/work"
)

// TestI6AFloodWaitsForNobodyElse: consumers are served in turn, each has a share,
// and the events of one consumer are with one worker at a time.
func TestI6AFloodWaitsForNobodyElse(t *testing.T) {
	q := New[string](Shares{Items: 100, Bytes: 1 << 20, AllItems: 400, AllBytes: 1 << 20, Turn: 4})
	put := func(consumer work.Consumer, value string) bool {
		_, ok := q.Put(consumer, "", 1, value, nil)
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
		if !put(work.Consumer(fmt.Sprint("polite", n)), "status") {
			t.Errorf("agent %d is refused", n)
		}
	}
	first := q.takeNow(16)
	if len(first.Items) != 16 || len(first.consumers) != 13 {
		t.Errorf("%d events of %d consumers", len(first.Items), len(first.consumers))
	}
	seen := map[string]bool{}
	for _, c := range first.consumers {
		seen[string(c)] = true
	}
	second := q.takeNow(64)
	for _, c := range second.consumers {
		if seen[string(c)] {
			t.Errorf("two workers have events of %s", c)
		}
	}
	if len(second.consumers) != 38 {
		t.Errorf("the others wait: %d were served", len(second.consumers))
	}
	q.Done(second)
	q.Done(first)
	next, order := 4, 0
	for q.length > 0 {
		taken := q.takeNow(7)
		for _, v := range taken.Items {
			if v != fmt.Sprint(next+order) {
				t.Fatalf("%s came instead of %d", v, next+order)
			}
			order++
		}
		got := q.Done(taken)
		if (q.length == 0) != (len(got) == 1) {
			t.Errorf("%d are left, and %q get refusals", q.length, got)
		}
	}
	if len(q.queues) != 0 || q.bytes != 0 {
		t.Errorf("%d queues and %d bytes are left", len(q.queues), q.bytes)
	}
}

// Where all queues together are full, a consumer that has little still gets in.
func TestAFullFairQueueHasRoomForWhoHasLittle(t *testing.T) {
	q := New[int](Shares{Items: 100, Bytes: 1 << 20, AllItems: 150, AllBytes: 1 << 20, Turn: 4})
	for n := range 200 {
		q.Put("a", "", 1, n, nil)
		q.Put("b", "", 1, n, nil)
	}
	if q.length > 160 {
		t.Errorf("%d events wait", q.length)
	}
	for n := range 10 {
		if _, ok := q.Put("c", "", 1, n, nil); !ok {
			t.Errorf("event %d of the third consumer is refused", n)
		}
	}
}

// A later event takes the place of an earlier one of its key while that waits.
func TestAFairQueueKeepsTheLatest(t *testing.T) {
	q := New[int](Shares{Items: 4, Bytes: 100, AllItems: 10, AllBytes: 100, Turn: 4})
	newer := func(n int) func(int) bool { return func(old int) bool { return old < n } }
	for n := range 1000 {
		if _, ok := q.Put("a", "w", 1, n, newer(n)); !ok {
			t.Fatalf("event %d is refused", n)
		}
	}
	if old, ok := q.Put("a", "w", 1, 5, newer(5)); old != nil || !ok {
		t.Error("an older one takes the place of a newer one")
	}
	taken := q.takeNow(10)
	if fmt.Sprint(taken.Items) != "[999 5]" {
		t.Errorf("%v are left", taken.Items)
	}
	if _, ok := q.Put("a", "w", 1, 1000, newer(1000)); !ok || len(q.takeNow(1).Items) != 0 {
		t.Error("what comes while a worker has the last one does not wait for it")
	}
	q.Done(taken)
	if got := q.takeNow(1); fmt.Sprint(got.Items) != "[1000]" {
		t.Errorf("%v come then", got.Items)
	}
}

// Workers sleep while there is nothing, and none sleeps while there is something.
func TestFairQueueWakesItsWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New[int](Shares{Items: 1000, Bytes: 1 << 20, AllItems: 10_000, AllBytes: 1 << 20, Turn: 1})
		const workers, consumers, each = 4, 40, 10
		got := make(chan int, consumers*each)
		for range workers {
			go func() {
				for {
					batch := q.Take(t.Context(), 1)
					if len(batch.Items) == 0 {
						return
					}
					<-time.After(time.Second) // virtual time
					got <- batch.Items[0]
					q.Done(batch)
				}
			}()
		}
		synctest.Wait()
		begun := time.Now()
		for n := range each {
			for c := range consumers {
				q.Put(work.Consumer(fmt.Sprint(c)), "", 1, n, nil)
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

// An event that replaces a smaller one counts for the byte shares as any other: otherwise small events of many keys,
// each replaced by a large one, would hold many times the share.
func TestReplacementsStayWithinTheShares(t *testing.T) {
	const large = 500
	always := func(string) bool { return true }
	for name, c := range map[string]struct {
		limits Shares
		most   int // bytes that may wait
	}{
		"one consumer": {Shares{Items: 100, Bytes: 1000, AllItems: 400, AllBytes: 1 << 20, Turn: 4}, 1000},
		// A consumer below its equal part may exceed that part by one event.
		"all consumers": {Shares{Items: 100, Bytes: 1 << 20, AllItems: 400, AllBytes: 1000, Turn: 4}, 1000 + large},
	} {
		t.Run(name, func(t *testing.T) {
			q := New[string](c.limits)
			for n := range 100 {
				if _, ok := q.Put("a", fmt.Sprint(n), 1, "small", always); !ok {
					t.Fatalf("small event %d is refused", n)
				}
			}
			refused := 0
			for n := range 100 {
				old, ok := q.Put("a", fmt.Sprint(n), large, "large", always)
				if !ok {
					refused++
				}
				if (old != nil) != ok {
					t.Errorf("large event %d: ok is %v, and it replaced %v", n, ok, old)
				}
			}
			if q.bytes > c.most || refused == 0 {
				t.Errorf("%d bytes wait; %d large events were refused", q.bytes, refused)
			}
			if _, ok := q.Put("a", "0", 1, "small again", always); !ok {
				t.Error("an event that is not larger than the one that it replaces is refused")
			}
			taken := q.takeNow(100)
			if got := q.Done(taken); len(taken.Items) != 100 || len(got) != 1 || q.bytes != 0 {
				t.Errorf("%d events were taken; Done returned %q; %d bytes are left", len(taken.Items), got, q.bytes)
			}
		})
	}
}

// A consumer with one event may replace it by an event of any size, as an empty queue takes an event of any size.
// A second event has to fit into the share.
func TestASingleEventMayExceedTheShare(t *testing.T) {
	q := New[string](Shares{Items: 100, Bytes: 1000, AllItems: 400, AllBytes: 1 << 20, Turn: 4})
	always := func(string) bool { return true }
	q.Put("a", "w", 1, "small", always)
	if old, ok := q.Put("a", "w", 5000, "large", always); old == nil || !ok {
		t.Errorf("the only event is not replaced: %v, %v", old, ok)
	}
	if _, ok := q.Put("a", "v", 1, "second", always); ok {
		t.Error("a second event is accepted beyond the share")
	}
}
