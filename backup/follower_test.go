package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/envelope"
)

// acknowledged is an entry of a writer's journal.
type acknowledged struct {
	at       time.Time
	revision int64
}

// world is an etcd, a store and a follower, in a bubble of synctest.
type world struct {
	t     *testing.T
	etcd  *fakeEtcd
	store *memoryStore
	f     *Follower
	stop  func() // the follower

	stopEtcd func()
	journal  []acknowledged
}

func newWorld(t *testing.T) *world { return newWorldWith(t, &fakeSampler{}) }

// newWorldWith returns a world whose etcd has a sampler; nil: an older program runs the plane.
func newWorldWith(t *testing.T, s *fakeSampler) *world {
	etcd, dial, stopEtcd := startEtcdWith(s)
	w := &world{t: t, etcd: etcd, store: newMemoryStore(), stopEtcd: stopEtcd}
	w.f = New(Options{Plane: testPlane, Dial: dial, Store: w.store, KMS: testKeys(t), Spool: t.TempDir()})
	w.run()
	t.Cleanup(func() { w.stop(); stopEtcd() })
	return w
}

// run starts the follower, as a restarted process does.
func (w *world) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.f.Run(ctx)
	}()
	w.stop = func() { cancel(); <-done }
}

// write writes n times, one after the other, with a pause after each.
func (w *world) write(n int, every time.Duration) {
	for range n {
		revision := w.etcd.write()
		w.journal = append(w.journal, acknowledged{time.Now(), revision})
		sleep(every)
	}
}

// lastBefore returns the last revision acknowledged before a moment.
func (w *world) lastBefore(at time.Time) (last int64) {
	for _, a := range w.journal {
		if a.at.Before(at) {
			last = a.revision
		}
	}
	return last
}

// Every second of a recorded time can be restored: every write acknowledged before it is there, and none that was
// written a second later. The plane of an older program takes no samples, and that of a hostile one only untrue ones.
func TestEverySecondCanBeRestored(t *testing.T) {
	for what, sampler := range map[string]*fakeSampler{"samples": {}, "an older program": nil,
		"untrue samples": {lie: func(first uint64, list []fakeSample) (uint64, []fakeSample) {
			for i := range list {
				list[i].Time += int64(time.Hour)
			}
			return first, list
		}}} {
		t.Run(what, func(t *testing.T) { checkEverySecond(t, sampler) })
	}
}

func checkEverySecond(t *testing.T, sampler *fakeSampler) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldWith(t, sampler)
		w.write(20, 100*time.Millisecond)
		begin := time.Now().Truncate(time.Second).Add(time.Second)
		w.write(300, 137*time.Millisecond)
		end := time.Now().Truncate(time.Second).Add(-time.Second)
		sleep(10 * time.Second) // the promise: everything is stored then
		for at := begin; at.Before(end); at = at.Add(time.Second) {
			r, err := fetch(t, w.store, at)
			if err != nil {
				t.Fatalf("%s: %v", at, err)
			}
			if least, most := w.lastBefore(at), w.lastBefore(at.Add(time.Second+time.Millisecond)); r.revision() < least ||
				r.revision() > most {
				t.Errorf("%s: restored to revision %d, want %d to %d", at, r.revision(), least, most)
			}
		}
		if r, err := fetch(t, w.store, time.Time{}); err != nil || r.revision() != w.etcd.revision() {
			t.Errorf("the latest: revision %d of %d, %v", r.revision(), w.etcd.revision(), err)
		}
		if age := time.Since(w.f.State().Stored); age > 10*time.Second {
			t.Errorf("everything was written 10 s ago, and the state is %s old", age)
		}
	})
}

// Chains follow each other by the hour, and every moment is in one of them.
func TestChainsFollowEachOtherWithoutAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		begin := time.Now().Add(time.Minute)
		w.write(75, time.Minute)
		chains, err := Chains(t.Context(), w.store, testPlane)
		if err != nil || len(chains) != 2 {
			t.Fatalf("%d chains after 75 minutes, %v", len(chains), err)
		}
		for at := begin; time.Since(at) > time.Minute; at = at.Add(7 * time.Minute) {
			r, err := fetch(t, w.store, at)
			if err != nil {
				t.Errorf("%s: %v", at, err)
			} else if want := w.lastBefore(at); r.revision() < want || r.revision() > want+1 {
				t.Errorf("%s: restored to revision %d, want %d", at, r.revision(), want)
			}
		}
	})
}

// Renew begins the next chain at once, also while the store is away, and the chain before it goes on until then.
func TestRenewBeginsTheNextChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write(60, time.Second)
		w.store.setFault(func(op, name string) error {
			if op == "put" && strings.HasSuffix(name, manifestObject) {
				return errors.New("no new manifest")
			}
			return nil
		})
		w.f.Renew()
		w.f.Renew()
		w.write(60, time.Second)
		if age := time.Since(w.f.State().Stored); age > 10*time.Second {
			t.Errorf("the chain before is %s old while the next cannot begin", age)
		}
		w.store.setFault(nil)
		w.write(60, time.Second)
		chains, err := Chains(t.Context(), w.store, testPlane)
		if err != nil || len(chains) != 2 {
			t.Fatalf("%d chains a minute after Renew, %v; want 2", len(chains), err)
		}
		r, err := fetch(t, w.store, time.Now().Add(-2*time.Minute))
		if want := w.lastBefore(time.Now().Add(-2 * time.Minute)); err != nil || r.revision() < want {
			t.Errorf("two minutes ago: revision %d, want %d, %v", r.revision(), want, err)
		}
	})
}

// A store that fails shows within a minute, nothing is lost for it, and it shows no longer when the store is well.
func TestAFailingStoreShowsAndLosesNothing(t *testing.T) {
	for name, fault := range map[string]func(op, name string) error{
		"forbidden": func(string, string) error { return errors.New("AccessDenied: no") },
		"full": func(op, _ string) error {
			if op == "put" {
				return errors.New("QuotaExceeded: full")
			}
			return nil
		},
		"slow": func(string, string) error { sleep(40 * time.Second); return errors.New("timeout") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.write(20, time.Second)
				if s := w.f.State(); s.Failing != "" || s.Stored.IsZero() {
					t.Fatalf("a good store: %+v", s)
				}
				w.store.setFault(fault)
				w.write(60, time.Second)
				if s := w.f.State(); s.Failing == "" {
					t.Errorf("after a minute: %+v", s)
				}
				w.store.setFault(nil)
				w.write(90, time.Second)
				if s := w.f.State(); s.Failing != "" || time.Since(s.Stored) > 10*time.Second {
					t.Errorf("the store is well again: %+v", s)
				}
				if r, err := fetch(t, w.store, time.Time{}); err != nil || r.revision() < w.etcd.revision()-10 {
					t.Errorf("restored to revision %d of %d, %v", r.revision(), w.etcd.revision(), err)
				}
			})
		})
	}
}

// A follower that is killed at any call of the store leaves a backup that restores to what was stored, and its
// successor goes on.
func TestAKilledFollowerLeavesARestorableBackup(t *testing.T) {
	for kill := range 12 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.write(5, time.Second)
			calls, killed := 0, make(chan struct{})
			w.store.setFault(func(string, string) error {
				if calls++; calls == kill+1 {
					close(killed)
				}
				if calls > kill {
					return errors.New("killed")
				}
				return nil
			})
			w.write(60, 200*time.Millisecond)
			w.stop()
			w.store.setFault(nil)
			before := w.f.State().Stored
			r, err := fetch(t, w.store, time.Time{})
			if err != nil {
				if !before.IsZero() {
					t.Fatalf("killed at call %d: %v", kill, err)
				}
			} else if want := w.lastBefore(before); r.revision() < want {
				t.Errorf("killed at call %d: revision %d, but %d was reported as stored", kill, r.revision(), want)
			}
			w.run()
			w.write(60, 200*time.Millisecond)
			sleep(10 * time.Second)
			if r, err := fetch(t, w.store, time.Time{}); err != nil || r.revision() != w.etcd.revision() {
				t.Errorf("killed at call %d, then continued: revision %d of %d, %v", kill, r.revision(), w.etcd.revision(), err)
			}
		})
	}
}

// When etcd has compacted what was not stored, a new snapshot has it.
func TestACompactedLogBeginsANewChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write(10, time.Second)
		w.stop()
		w.write(10, time.Second)
		w.etcd.mu.Lock()
		w.etcd.compacted = int64(len(w.etcd.events))
		w.etcd.mu.Unlock()
		w.run()
		w.write(10, time.Second)
		sleep(10 * time.Second)
		if r, err := fetch(t, w.store, time.Time{}); err != nil || r.revision() != w.etcd.revision() {
			t.Errorf("revision %d of %d, %v", r.revision(), w.etcd.revision(), err)
		}
	})
}

// The last writes before a plane ends are stored, although there is no sample for them.
func TestTheLastWritesOfAPlaneAreStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write(10, time.Second)
		w.write(5, time.Millisecond)
		synctest.Wait() // they have been sent
		w.stopEtcd()
		sleep(time.Second)
		w.stop()
		if r, err := fetch(t, w.store, time.Time{}); err != nil || r.revision() != w.etcd.revision() {
			t.Errorf("revision %d of %d, %v", r.revision(), w.etcd.revision(), err)
		}
	})
}

// A watch has one message for each write. The follower reads those of a second together, and still has each write in
// the store within ten seconds.
func TestTheWritesOfASecondAreReadTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write(200, 10*time.Millisecond)
		before := w.etcd.watchReads.Load()
		w.write(6000, 10*time.Millisecond)
		if reads := w.etcd.watchReads.Load() - before; reads > 5*60 {
			t.Errorf("%d reads in a minute of 100 writes a second", reads)
		}
		sleep(10 * time.Second)
		if r, err := fetch(t, w.store, time.Time{}); err != nil || r.revision() != w.etcd.revision() {
			t.Errorf("revision %d of %d, %v", r.revision(), w.etcd.revision(), err)
		}
	})
}

// Damage anywhere is found: no restore returns wrong data.
func TestDamageIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.etcd.setPadding(200 << 10)
		w.write(40, 500*time.Millisecond)
		sleep(2 * lookEvery) // the last segment, and a mark after it
		w.stop()
		names, err := w.store.List(t.Context(), "")
		if err != nil || len(names) < 5 {
			t.Fatalf("objects %v, %v", names, err)
		}
		for _, name := range names {
			if strings.Contains(name, orderPrefix) { // has no content that is read
				continue
			}
			good := w.store.content(name)
			for what, change := range map[string][]byte{
				"a bit in the middle": flip(good, len(good)/2), "the first bit": flip(good, 0),
				"the last bit": flip(good, len(good)-1),
				"cut short":    good[:len(good)/2], "empty": {}, "longer": append(slices.Clone(good), 0),
				"another object": w.store.content(names[(slices.Index(names, name)+1)%len(names)]),
			} {
				w.store.replace(name, change)
				if _, err := fetch(t, w.store, time.Time{}); err == nil {
					t.Errorf("%s: %s was not found", name, what)
				}
			}
			w.store.replace(name, nil)
			r, err := fetch(t, w.store, time.Time{})
			// Without the mark the backup ends earlier, and nothing in the store can show that.
			if isMark := strings.HasSuffix(name, markObject); err == nil && !isMark {
				t.Errorf("%s is missing, and that was not found: revision %d", name, r.revision())
			}
			w.store.replace(name, good)
		}
		if _, err := fetch(t, w.store, time.Time{}); err != nil {
			t.Error(err)
		}
		_, err = Fetch(t.Context(), w.store, mustKeys(t, "k2"), testPlane, time.Time{}, t.TempDir())
		if err == nil || !strings.Contains(err.Error(), `"k1"`) {
			t.Errorf("with another key: %v", err)
		}
	})
}

func flip(b []byte, i int) []byte {
	b = slices.Clone(b)
	b[i] ^= 1
	return b
}

func mustKeys(t *testing.T, name string) *envelope.KeyFile {
	k, err := envelope.ParseKeys(fmt.Appendf(nil, "%s %sQUE=\n", name, strings.Repeat("QUFB", 10)))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// The snapshot's temporary file leaves nothing behind.
func TestNothingIsLeftInTheSpool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write(3, time.Second)
		files, err := os.ReadDir(w.f.o.Spool)
		if err != nil || len(files) > 0 {
			t.Errorf("%v, %v", files, err)
		}
	})
}

// sleep lets the bubble's time pass.
func sleep(d time.Duration) { <-time.After(d) }
