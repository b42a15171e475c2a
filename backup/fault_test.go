package backup

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// While the store refuses everything, etcd keeps the changes. What it then delivers at once becomes segments that a
// restore can read, and is never in memory as a whole.
func TestALongOutageOfTheStoreBecomesSmallSegments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write(10, time.Second)
		w.store.setFault(func(op, _ string) error {
			if op == "put" {
				return errors.New("QuotaExceeded: full")
			}
			return nil
		})
		w.write(5, time.Second)
		w.etcd.setValue(256 << 10)
		w.write(40, 100*time.Millisecond)
		w.etcd.setValue(0)
		w.store.setFault(nil)
		w.write(90, time.Second)
		if r, err := fetch(t, w.store, time.Time{}); err != nil || r.revision() < w.etcd.revision()-10 {
			t.Errorf("restored to revision %d of %d, %v", r.revision(), w.etcd.revision(), err)
		}
		w.stop()
		keys := testKeys(t)
		chains, err := Chains(t.Context(), w.store, testPlane)
		if err != nil || len(chains) != 1 {
			t.Fatalf("%d chains, %v", len(chains), err)
		}
		r := &chainReader{store: w.store, kms: keys, prefix: testPlane.prefix() + chains[0].Name + "/"}
		if err := r.readManifest(t.Context()); err != nil {
			t.Fatal(err)
		}
		for n := 1; n <= chains[0].Segments; n++ {
			s, _, err := r.readSegment(t.Context(), w.store, n)
			if err != nil || len(s.events) > segmentMax+3<<20 { // and one response of etcd
				t.Errorf("segment %d: %d bytes, %v", n, len(s.events), err)
			}
		}
	})
}

// When the next chain cannot be made, because no snapshot fits on the disk, the present one goes on.
func TestAFailedNextChainDoesNotEndThePresentOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write(10, time.Second)
		full := w.f.o.Spool + "-full"
		if err := os.Rename(w.f.o.Spool, full); err != nil {
			t.Fatal(err)
		}
		w.write(62, time.Minute)
		if s := w.f.State(); s.Failing != "" || time.Since(s.Stored) > 10*time.Second {
			t.Errorf("without room for a snapshot: %+v at %s", s, time.Now())
		}
		if r, err := fetch(t, w.store, time.Time{}); err != nil || r.revision() != w.etcd.revision() {
			t.Errorf("restored to revision %d of %d, %v", r.revision(), w.etcd.revision(), err)
		}
		if err := os.Rename(full, w.f.o.Spool); err != nil {
			t.Fatal(err)
		}
		w.write(10, time.Minute)
		if chains, err := Chains(t.Context(), w.store, testPlane); err != nil || len(chains) != 2 {
			t.Errorf("with room again: %d chains, %v", len(chains), err)
		}
	})
}

// An etcd that stalls within its snapshot does not keep a place that other planes need.
func TestAStalledSnapshotFreesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, dial, stop := startEtcd()
		etcd.snapshot = func(s pb.Maintenance_SnapshotServer) error { <-s.Context().Done(); return s.Context().Err() }
		stalled := &world{t: t, etcd: etcd, store: newMemoryStore()}
		places := make(chan struct{}, 1)
		stalled.f = New(Options{Plane: Plane{"ns", "stalled"}, Dial: dial, Store: stalled.store, KMS: testKeys(t),
			Spool: t.TempDir(), Snapshots: places})
		stalled.run()
		t.Cleanup(func() { stalled.stop(); stop() })
		sleep(time.Second)

		other, dial, stopOther := startEtcd()
		w := &world{t: t, etcd: other, store: newMemoryStore()}
		w.f = New(Options{Plane: testPlane, Dial: dial, Store: w.store, KMS: testKeys(t), Spool: t.TempDir(),
			Snapshots: places})
		w.run()
		t.Cleanup(func() { w.stop(); stopOther() })
		w.write(60, time.Second)
		if s := w.f.State(); s.Stored.IsZero() {
			t.Error("the other plane has no backup")
		}
		if s := stalled.f.State(); !strings.Contains(s.Failing, "etcd sent nothing for 10s") {
			t.Errorf("the stalled plane: %+v", s)
		}
	})
}

// A follower that is killed between the manifest of a chain and its first segment has stored more in the chain before.
// The latest restore has all of it.
func TestTheLatestRestoreUsesTheChainThatHasMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write(60, 30*time.Second)
		chains, err := Chains(t.Context(), w.store, testPlane)
		if err != nil || len(chains) != 1 {
			t.Fatalf("%d chains, %v", len(chains), err)
		}
		var isKilled atomic.Bool
		w.store.setFault(func(op, name string) error {
			isNext := !strings.Contains(name, chains[0].Name)
			switch {
			case isKilled.Load():
				return errors.New("killed")
			case op == "put" && isNext && strings.HasSuffix(name, manifestObject):
				isKilled.Store(true)
			case op == "put" && isNext:
				sleep(time.Minute) // an upload over a narrow line
			}
			return nil
		})
		var stored time.Time
		for !isKilled.Load() {
			w.write(1, time.Second)
			if !isKilled.Load() {
				stored = w.f.State().Stored
			}
		}
		w.stop()
		w.store.setFault(nil)
		for _, at := range []time.Time{{}, stored.Add(-time.Second)} {
			want := w.lastBefore(stored)
			if !at.IsZero() {
				want = w.lastBefore(at)
			}
			if r, err := fetch(t, w.store, at); err != nil || r.revision() < want {
				t.Errorf("at %s: revision %d, want %d at least, %v", at, r.revision(), want, err)
			}
		}
	})
}

// When only the snapshot of a chain is kept, the error for a later moment names the one that can be restored.
func TestTheErrorOfALaterMomentNamesTheOneThatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write(10, time.Second)
		w.stop()
		names, err := w.store.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.Contains(name, "/"+segmentPrefix) || strings.HasSuffix(name, "/"+markObject) {
				w.store.replace(name, nil)
			}
		}
		_, err = fetch(t, w.store, time.Now())
		if err == nil {
			t.Fatal("a moment without a log was restored")
		}
		_, rest, _ := strings.Cut(err.Error(), "restores to ")
		named, _, _ := strings.Cut(rest, " ")
		at, parseErr := time.Parse(time.RFC3339, named)
		if parseErr != nil {
			t.Fatalf("%v: %v", err, parseErr)
		}
		if _, err := fetch(t, w.store, at); err != nil {
			t.Errorf("at %s: %v", at, err)
		}
	})
}

// An object under a name that looks like a chain's, and is none, hinders neither restore nor collection.
func TestAStrayObjectHindersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write(10, time.Second)
		w.store.replace(testPlane.prefix()+"20261399T996199.000Z-00000000/chain", []byte("x"))
		if _, err := fetch(t, w.store, time.Time{}); err != nil {
			t.Error(err)
		}
		if _, err := DeleteExpired(t.Context(), w.store, testPlane, DefaultRetention(), time.Now()); err != nil {
			t.Error(err)
		}
	})
}

// A chain that cannot be deleted, as under a lock of the store, does not keep the others.
func TestALockedChainDoesNotKeepTheOthers(t *testing.T) {
	store, now := newMemoryStore(), time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	for day := range 90 {
		taken := now.Add(-time.Duration(day) * 24 * time.Hour).Format(chainTime)
		store.replace(fmt.Sprintf("%s%s-00000000/chain", testPlane.prefix(), taken), []byte{})
	}
	store.setFault(func(op, name string) error {
		if op == "delete" && strings.Contains(name, "/20260826T") {
			return errors.New("AccessDenied: locked")
		}
		return nil
	})
	n, err := DeleteExpired(t.Context(), store, testPlane, DefaultRetention(), now)
	if n < 70 || err == nil || !strings.Contains(err.Error(), "locked") {
		t.Errorf("%d objects were deleted, %v", n, err)
	}
}

// The followers of many planes begin together, and their next chains do not.
func TestNextChainsDoNotBeginTogether(t *testing.T) {
	minutes := map[time.Duration]int{}
	for i := range 80 {
		age := firstAge(Plane{"ns", fmt.Sprintf("hc-%d", i)})
		if age < chainAge/2 || age > chainAge {
			t.Errorf("plane %d: %s", i, age)
		}
		minutes[age/time.Minute]++
	}
	for minute, n := range minutes {
		if n > 12 {
			t.Errorf("%d of 80 planes begin their next chain in minute %d", n, minute)
		}
	}
}
