package sentinel

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/bus"
	"atoll.dev/store"
)

// slotsByHolder returns the number of slots of each holder, from the database.
func (w *world) slotsByHolder() map[string]int {
	w.t.Helper()
	held := map[string]int{}
	err := w.store.Tx(w.t.Context(), func(tx *store.Tx) error {
		rows, err := tx.Query(
			w.t.Context(),
			`select coalesce(m.name, ''), count(*) from sentinel_slot s left join sentinel_member m on m.session = s.holder group by 1`,
		)
		if err != nil {
			return err
		}
		var name string
		var n int
		_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error { held[name] = n; return nil })
		return err
	})
	must(w.t, 0, err)
	return held
}

// createChannels creates channels, each of which has one event if none is lost, until the test calls stop, which
// returns their ids. A slow machine keeps up with 25 in a second under the race detector.
func (w *world) createChannels() (stop func() []string) {
	ctx, cancel := context.WithCancel(w.t.Context())
	var ids []string
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(40 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			id := fmt.Sprintf("channel-%d", len(ids))
			w.create(channel, id, nil)
			ids = append(ids, id)
		}
	})
	return func() []string { cancel(); done.Wait(); return ids }
}

// waitForAll waits until each of the resources has had an event.
func (a *adapter) waitForAll(ids []string) {
	a.t.Helper()
	missing := map[string]bool{}
	for _, id := range ids {
		missing[id] = true
	}
	if len(missing) == 0 {
		return
	}
	a.waitFor(fmt.Sprintf("of all %d", len(ids)), func(h received) bool {
		delete(missing, h.Data.ID)
		return len(missing) == 0
	})
}

func except(ids []string, excluded string) []string {
	return slices.DeleteFunc(ids, func(id string) bool { return id == excluded })
}

// measureStalls measures for how long the machine did not run this process, until the test calls total. A test with a
// limit of time adds that.
func measureStalls(t *testing.T) (total func() time.Duration) {
	const every, much = 20 * time.Millisecond, 200 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	sum := make(chan time.Duration, 1)
	go func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		var all time.Duration
		for last := time.Now(); ; last = time.Now() {
			select {
			case <-ctx.Done():
				sum <- all
				return
			case <-tick.C:
				if gap := time.Since(last); gap > much {
					all += gap
				}
			}
		}
	}()
	return func() time.Duration { cancel(); return <-sum }
}

// With the default lease another replica has the slots of a killed one within 10 s, also if renewals
// are late: the rest of the lease and the time to the next renewal are at most 9 s.
func TestALeaseEndsInTime(t *testing.T) {
	o, err := Options{Store: &store.Store{}, Feed: &store.Broadcast{}, Kinds: []Kind{{}}, Bus: bus.ClientOptions{
		Addr: "x"}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	for late := time.Duration(0); late <= time.Minute; late += 50 * time.Millisecond {
		lease := leaseLength(o.Lease, late)
		// The next renewal is as late as the one that lengthened the lease.
		next := min(max(late, o.Lease/renewals), o.Lease/2)
		if lease < o.Lease || lease+next > 9*time.Second {
			t.Fatalf("%s after the last renewal the lease is %s", late, lease)
		}
	}
}

// I4: after a replica is killed, the others send its unsent events. With the default lease they have
// its slots within 10 s: the leases add up to 9 s (TestALeaseEndsInTime), and the machine adds what it needs.
func TestI4AKilledReplicaLosesNoEvent(t *testing.T) {
	w := newWorld(t)
	a := w.adapter("ch", "channels")
	usual := func(o *Options) { o.Lease = 0 }
	one, two := w.start("one", usual), w.start("two", usual)
	w.wait("both replicas hold slots", func() bool {
		h := w.slotsByHolder()
		return h["one"] > 0 && h["two"] > 0 && h["one"]+h["two"] == slots && one.slotsRead.Load() && two.slotsRead.Load()
	})
	stop := w.createChannels()
	h := a.waitFor("an event of a channel", func(received) bool { return true })
	if h.Data.Kind != "Channel" {
		t.Errorf("an event of %s", h.Data.Kind)
	}
	one.kill()
	killed, stalled := time.Now(), measureStalls(t)
	w.wait("the other replica holds all slots", func() bool { return w.slotsByHolder()["two"] == slots })
	took := time.Since(killed)
	t.Logf("the other replica holds the slots of the killed one after %s", took)
	if took > 30*time.Second+stalled() {
		t.Errorf("it took %s", took)
	}
	more := w.start("three", usual)
	added, stalled := time.Now(), measureStalls(t)
	w.wait("the new replica holds its share", func() bool {
		h := w.slotsByHolder()
		return h["two"] > 0 && h["three"] > 0 && h["two"]+h["three"] == slots
	})
	took = time.Since(added)
	t.Logf("the new replica holds its share after %s", took)
	if took > 30*time.Second+stalled() {
		t.Errorf("the new replica holds its share after %s, more than 30 s", took)
	}
	w.wait("the new replica has read its share", more.slotsRead.Load)
	a.waitForAll(except(stop(), h.Data.ID))
}

// I5: if the sentinel is killed before the broker has the events of committed changes, the next process sends them, and
// sends no acknowledged event again.
func TestI5TheCursorReplacesAnOutbox(t *testing.T) {
	w := newWorld(t)
	a := w.adapter("ch", "channels")
	one := w.start("one")
	w.create(channel, "published", nil)
	a.waitForEvent("published", 1)
	w.wait("the cursors lie after the change", func() bool {
		return inside(one, func() bool { return len(one.table.unsent) == 0 && len(one.cursors()) == 0 })
	})
	w.stopBroker()
	w.wait("the client has lost the broker", func() bool { return !one.client.Connected() })
	ids := make([]string, 20)
	for i := range ids {
		ids[i] = fmt.Sprint("unpublished-", i)
		w.create(channel, ids[i], nil)
	}
	w.change(channel, "published", 1)
	w.wait(
		"the sentinel has read the changes",
		func() bool { return inside(one, func() bool { return len(one.table.unsent) == 21 }) },
	)
	renewed := one.leaseRenewedAt.Load()
	w.wait("the lease was renewed, with any new cursors", func() bool { return one.leaseRenewedAt.Load() > renewed })
	one.kill()
	w.startBroker()
	// The broker also accepts events without a subscriber, and a channel's event is not repeated.
	w.wait("the adapter is connected again", a.client.Connected)
	two := w.start("one")
	a.waitForAll(append(ids, "published"))
	w.wait("the cursors lie after all changes", func() bool {
		return inside(two, func() bool {
			return two.slotsRead.Load() && len(two.table.unsent) == 0 && len(two.cursors()) == 0 && len(two.table.all) == 21
		})
	})
	two.kill()
	three := w.start("one")
	w.wait(
		"the third process has read all channels",
		func() bool { return inside(three, func() bool { return len(three.table.all) == 21 }) },
	)
	pending, published := 0, uint64(0)
	inside(three, func() bool {
		pending = three.table.count(channel).pending
		for _, r := range three.table.all {
			published += r.lastEvent
		}
		return true
	})
	if pending != 0 || published != 0 {
		t.Errorf("%d events are pending and %d were sent again", pending, published)
	}
}

// I12: a process that restarts under its name does not wait for the end of its own lease.
func TestI12AKilledProcessResumesAtOnce(t *testing.T) {
	w := newWorld(t)
	a := w.adapter("ch", "channels")
	one := w.start("one", func(o *Options) { o.Lease = time.Hour })
	one.kill()
	w.create(channel, "meanwhile", nil)
	w.start("one", func(o *Options) { o.Lease = time.Hour })
	a.waitForEvent("meanwhile", 1)
}

func TestTwoReplicasOfOneNameBothWork(t *testing.T) {
	w := newWorld(t)
	a := w.adapter("ch", "channels")
	one := w.start("same")
	two := w.startUnready("same")
	if one.opts.Bus.ClientID == two.opts.Bus.ClientID {
		t.Errorf("both have the client id %s, and end each other's connections", one.opts.Bus.ClientID)
	}
	w.wait("both hold slots, under two names", func() bool {
		h := w.slotsByHolder()
		return len(h) == 2 && h[""] == 0 && one.slotsRead.Load() && two.slotsRead.Load()
	})
	stop := w.createChannels()
	first := a.waitFor("some", func(received) bool { return true })
	a.waitForAll(except(stop(), first.Data.ID))
}

func TestAStoppingReplicaReleasesItsSlots(t *testing.T) {
	w := newWorld(t)
	var held map[string]int
	for range 5 { // a replica takes two seconds to release them at most, and a machine may pause for longer
		one := w.start("one", func(o *Options) { o.Lease = time.Hour })
		one.stop()
		if held = w.slotsByHolder(); held[""] == slots {
			return
		}
	}
	t.Errorf("slots are held by %v", held)
}

// I4: when the subscription to the feed fails, the sentinel reads all resources again.
func TestI4AFailedSubscriptionLosesNoEvent(t *testing.T) {
	w := newWorld(t)
	a := w.adapter("ch", "channels")
	r := w.start("one")
	stop := w.createChannels()
	first := a.waitFor("one", func(received) bool { return true })
	for range 3 {
		before := inside(r, func() uint64 { return r.lastEpoch })
		r.opts.Feed.Fail(store.ErrTooSlow)
		w.wait("the sentinel has read all resources again", func() bool {
			return inside(
				r, func() bool { return r.lastEpoch > before && r.slotsRead.Load() })
		})
	}
	a.waitForAll(except(stop(), first.Data.ID))
}

func TestAllReplicasComputeTheSameShares(t *testing.T) {
	three := []member{{"a", "1"}, {"b", "2"}, {"c", "3"}}
	counts := map[string]int{}
	moved := 0
	for slot := range slots {
		of := shareHolder("f", slot, three)
		counts[of]++
		if of != shareHolder("f", slot, []member{three[2], three[0], three[1]}) {
			t.Errorf("the holder of slot %d depends on the order of members", slot)
		}
		if without := shareHolder("f", slot, three[:2]); of != "3" && of != without {
			moved++
		}
	}
	if moved > 0 || len(counts) != 3 {
		t.Errorf("%d slots moved between the remaining members; %v", moved, counts)
	}
}
