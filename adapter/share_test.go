package adapter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/bus"
)

// since are slots that this replica has held since a time.
func since(at int64, slots ...int) (open []OpenSlot) {
	for _, slot := range slots {
		open = append(open, OpenSlot{slot, at})
	}
	return open
}

// A replica does not release a slot in which runs may begin: the answer that closes the slot may be
// late or lost, and another replica would begin.
func TestASlotIsClosedBeforeItsRelease(t *testing.T) {
	now := time.Now()
	s := &share{lease: time.Minute}
	keeps := func(what string, want ...int) {
		t.Helper()
		if got := s.slotsToKeep(); !slices.Equal(got, want) {
			t.Errorf("%s it keeps %v, want %v", what, got, want)
		}
	}
	keeps("at first")
	s.applyRenewal(4, since(1, 0, 1, 3), now)
	keeps("with nothing under way", 0, 1, 3)
	id := "a"
	for bus.SlotOf(id, 4) != 3 {
		id += "a"
	}
	_, end, ok := s.begin(t.Context(), id, now)
	if !ok {
		t.Fatal("it may not begin")
	}
	s.applyRenewal(4, since(1, 0), now) // the others are to be another's
	keeps("while a run is under way", 0, 3)
	if _, _, ok := s.begin(t.Context(), id, now); ok {
		t.Error("more is begun")
	}
	end()
	keeps("when it has ended", 0)
	if s.endIfExpired(now); s.endIfExpired(now.Add(time.Hour)) {
		keeps("after the lease")
	} else {
		t.Error("it does not lapse")
	}
}

// A slot that another replica may have held is gained; a slot without another holder is not.
func TestSlotsAreGainedAfterAnotherHolder(t *testing.T) {
	now := time.Now()
	s := &share{lease: time.Minute}
	gains := func(what string, open []OpenSlot, want ...int) {
		t.Helper()
		if got := s.applyRenewal(4, open, now); !slices.Equal(got, want) {
			t.Errorf("%s: gained %v, want %v", what, got, want)
		}
	}
	lapse := func() {
		t.Helper()
		now = now.Add(time.Hour)
		if !s.endIfExpired(now) {
			t.Error("the lease is not over")
		}
	}
	gains("at first", since(1, 0, 1), 0, 1)
	gains("again", since(1, 0, 1))
	lapse()
	gains("after a pause", since(1, 0, 1))
	lapse()
	gains("when another had a slot meanwhile", append(since(1, 0), since(2, 1)...), 1)
	gains("when one is given away", since(1, 0))
	gains("when it comes back", append(since(1, 0), since(3, 1)...), 1)
	lapse()
	gains("of a server that does not say since when", since(0, 0, 1), 0, 1)
}

// pausing is a Sharer that may be away.
type pausing struct {
	mu    sync.Mutex
	away  bool
	since map[int]int64
}

func (p *pausing) Renew(_ context.Context, _ time.Duration, _ []int) (slots int, open []OpenSlot, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return 0, nil, errors.New("away")
	}
	for slot := range 4 {
		open = append(open, OpenSlot{slot, p.since[slot]})
	}
	return 4, open, nil
}

func (p *pausing) Leave(context.Context) error { return nil }

// pause makes the calls of Beat fail until resume.
func (p *pausing) pause() { p.mu.Lock(); p.away = true; p.mu.Unlock() }

func (p *pausing) resume() { p.mu.Lock(); p.away = false; p.mu.Unlock() }

// A pause of CLM beyond the lease repeats only interrupted runs and runs of new events. If another
// replica held a slot, the resources of that slot are checked, and no others.
func TestAPauseRepeatsNoRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const fleet = 400
		var mu sync.Mutex
		runs, block := map[string]int{}, make(chan struct{})
		sharer := &pausing{since: map[int]int64{0: 1, 1: 1, 2: 1, 3: 1}}
		watcher := &recalled{}
		w := NewWorker(WorkerOptions{Name: "a", Topic: "clusters", Sharer: sharer, Watcher: watcher,
			Log: slog.New(slog.DiscardHandler),
			Engine: runnerFunc(func(ctx context.Context, e Event) *Result {
				mu.Lock()
				runs[e.ID]++
				mu.Unlock()
				if e.Generation == 2 {
					select {
					case <-ctx.Done():
						return &Result{Errors: map[Phase]error{Resources: context.Cause(ctx)}}
					case <-block:
					}
				}
				return &Result{}
			})})
		count := func() (total int, each map[string]int) {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			each = runs
			for _, n := range runs {
				total += n
			}
			runs = map[string]int{}
			return total, each
		}
		ctx, cancel := context.WithCancel(t.Context())
		var parts sync.WaitGroup
		defer func() { cancel(); parts.Wait() }()
		if ok, err := w.firstShare(ctx); !ok || err != nil {
			t.Fatal(err)
		}
		w.takeSlotsToResync()
		greeted := make(chan bus.Hello, 10)
		w.sendHello = func(_ context.Context, h bus.Hello) { greeted <- h }
		parts.Go(func() { w.pool.Run(ctx) })
		parts.Go(func() { w.keepShare(ctx) })
		parts.Go(func() { w.resyncSlots(ctx) })
		parts.Go(func() { w.watch(ctx) })
		for i := range fleet {
			watcher.events = append(watcher.events, Event{ID: fmt.Sprint("r", i), Generation: 1})
			w.enqueue(hint{task: task{Event: watcher.events[i]}})
		}
		if n, _ := count(); n != fleet {
			t.Fatalf("%d runs of %d", n, fleet)
		}

		w.enqueue(hint{task: task{Event: Event{ID: "r7", Generation: 2}}}) // is under way when the pause comes
		sharer.pause()
		<-time.After(10 * time.Second)
		if w.share.holds("r7", time.Now()) != suspended {
			t.Error("the lease is not over")
		}
		w.enqueue(hint{task: task{Event: Event{ID: "r8", Generation: 1}}, watched: true})
		w.enqueue(hint{task: task{Event: Event{ID: "r9", Generation: 3}}})
		if n, each := count(); n != 1 || each["r7"] != 1 {
			t.Errorf("while the lease is over: %v", each)
		}
		sharer.resume()
		close(block)
		<-time.After(time.Minute)
		if n, each := count(); n != 3 || each["r7"] != 1 || each["r8"] != 1 || each["r9"] != 1 || len(greeted) > 0 {
			t.Errorf("after the pause %d runs, want those of r7, r8 and r9: %v; hellos %d", n, each, len(greeted))
		}

		sharer.mu.Lock()
		sharer.since[2], sharer.away = 2, true // another replica had it in between
		sharer.mu.Unlock()
		<-time.After(10 * time.Second)
		sharer.resume()
		<-time.After(time.Minute)
		n, each := count()
		for id := range each {
			if bus.SlotOf(id, 4) != 2 {
				t.Errorf("%s ran again, which is not of slot 2", id)
			}
		}
		if h := <-greeted; n == 0 || n > fleet/2 || h.Of != 4 || !slices.Equal(h.Slots, []int{2}) {
			t.Errorf("%d runs after another replica had slot 2; the hello was %+v", n, h)
		}
	})
}

// recalled is a Watcher with constant objects.
type recalled struct {
	events  []Event
	changed func(Event) bool
}

func (r *recalled) Watch(ctx context.Context, changed func(Event) bool) error {
	r.changed = changed
	<-ctx.Done()
	return ctx.Err()
}

func (r *recalled) Recall(match func(Event) bool) {
	for _, e := range r.events {
		if match(e) {
			r.changed(e)
		}
	}
}

// Events of other replicas' resources take no time, own events keep the rate, and each resource is
// reported once.
func TestPacedQueueKeepsItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewPacedQueue(50)
		for i := range 1000 {
			q.Add(Event{ID: fmt.Sprint(i % 500), Generation: int64(i)})
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begun, reported := time.Now(), 0
		q.Run(ctx, func(e Event) bool {
			if e.Generation < 500 {
				t.Errorf("an old generation: %v", e)
			}
			if e.Generation%5 > 0 {
				return false
			}
			if reported++; reported == 100 {
				cancel()
			}
			return true
		})
		if took := time.Since(begun); reported != 100 || took < 1900*time.Millisecond || took > 2*time.Second {
			t.Errorf("the watcher reported %d events in %s", reported, took)
		}
	})
}
