package backup

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Every second of an idle plane can be restored 10 s later, without an object for each: the follower proves that
// nothing happened. A chain that never had a change is whole, too.
func TestEverySecondOfAnIdlePlaneCanBeRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		sleep(time.Minute)
		if chains, err := Chains(t.Context(), w.store, testPlane); err != nil || len(chains) != 1 || !chains[0].Whole {
			t.Errorf("chains without a change: %+v, %v", chains, err)
		}
		w.write(3, time.Second)
		sleep(10 * time.Second)
		objects, _ := w.store.List(t.Context(), "")
		begin := time.Now()
		for range 90 {
			at := time.Now().Add(-10 * time.Second)
			if r, err := fetch(t, w.store, at); err != nil || r.revision() != w.lastBefore(at) || r.Sample.Time.Before(at) {
				t.Fatalf("at %s: revision %d, %+v, %v", at.Sub(begin), r.revision(), r.Sample, err)
			}
			sleep(time.Second)
		}
		if after, _ := w.store.List(t.Context(), ""); len(after) != len(objects) {
			t.Errorf("%d objects before, %d after 90 idle seconds", len(objects), len(after))
		}
		w.write(3, time.Second) // the mark is stale now
		sleep(10 * time.Second)
		for at := begin; at.Before(time.Now().Add(-10 * time.Second)); at = at.Add(time.Second) {
			if r, err := fetch(t, w.store, at); err != nil || r.revision() > w.lastBefore(at.Add(time.Second+1)) {
				t.Fatalf("at %s: revision %d, %v", at.Sub(begin), r.revision(), err)
			}
		}
	})
}

// A mark proves something about its own log only, and shows that the last segment is missing.
func TestAMarkShowsAMissingSegment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write(20, time.Second)
		sleep(20 * time.Second)
		w.stop()
		names, err := w.store.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		var segments []string
		for _, name := range names {
			if strings.Contains(name, "/"+segmentPrefix) {
				segments = append(segments, name)
			}
		}
		at := time.Now().Add(-15 * time.Second)
		if r, err := fetch(t, w.store, at); err != nil || r.revision() != w.etcd.revision() {
			t.Fatalf("revision %d, %v", r.revision(), err)
		}
		w.store.replace(segments[len(segments)-1], nil)
		if _, err := fetch(t, w.store, at); !errors.Is(err, ErrCorrupt) {
			t.Errorf("without the last segment: %v", err)
		}
	})
}

// An idle plane whose store fails shows that within a minute.
func TestAFailingStoreShowsInAnIdlePlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		sleep(time.Minute)
		if s := w.f.State(); s.Failing != "" || time.Since(s.Stored) > 10*time.Second {
			t.Fatalf("%+v", s)
		}
		w.store.setFault(func(op, _ string) error {
			if op == "put" {
				return errors.New("forbidden")
			}
			return nil
		})
		sleep(time.Minute)
		if s := w.f.State(); s.Failing != "forbidden" {
			t.Errorf("%+v", s)
		}
	})
}

// A chain has the keys of its plane, encrypted, and a restore elsewhere writes them.
func TestAChainHasTheKeysOfThePlane(t *testing.T) {
	dir := t.TempDir()
	pki := filepath.Join(dir, "pki")
	if err := os.Mkdir(pki, 0o700); err != nil {
		t.Fatal(err)
	}
	secret := strings.Repeat("a private key ", 10)
	if err := os.WriteFile(filepath.Join(pki, "ca.key"), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(t.TempDir(), "foreign.key") // a link of a plane that was taken over
	if err := errors.Join(os.WriteFile(foreign, []byte("foreign"), 0o600),
		os.Symlink(foreign, filepath.Join(pki, "other.key"))); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		etcd, dial, stopEtcd := startEtcd()
		w := &world{t: t, etcd: etcd, store: newMemoryStore(), stopEtcd: stopEtcd}
		w.f = New(Options{Plane: testPlane, Dial: dial, Store: w.store, KMS: testKeys(t), Spool: t.TempDir(),
			Keys: func() (Keys, error) { return ReadKeys(dir) }})
		w.run()
		t.Cleanup(func() { w.stop(); stopEtcd() })
		w.write(3, time.Second)
		r, err := fetch(t, w.store, time.Time{})
		if err != nil || string(r.Keys["ca.key"]) != secret || len(r.Keys) != 1 {
			t.Fatalf("keys %v, %v", slices.Collect(maps.Keys(r.Keys)), err)
		}
		names, _ := w.store.List(t.Context(), "")
		for _, name := range names {
			if strings.Contains(string(w.store.content(name)), "private key") {
				t.Errorf("%s has the key as it is", name)
			}
		}
		other := t.TempDir()
		if err := r.Keys.Write(filepath.Join(other, "pki")); err != nil {
			t.Fatal(err)
		}
		if again, err := ReadKeys(other); err != nil || string(again["ca.key"]) != secret {
			t.Errorf("%v, %v", again, err)
		}
		if err := r.Keys.Write(filepath.Join(other, "pki")); err == nil {
			t.Error("keys were written over others")
		}
		for _, name := range names {
			if strings.HasSuffix(name, "/"+keysObject) {
				w.store.replace(name, nil)
			}
		}
		if _, err := fetch(t, w.store, time.Time{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("without the object of the keys: %v", err)
		}
	})
}

// The backups of a deleted cluster stay for a week. Those of a cluster that exists again stay, and the week begins anew
// with its next deletion.
func TestTheBackupsOfADeletedClusterExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write(10, time.Second)
		w.stop()
		records, other := NewRecords(w.store, testKeys(t)), Plane{"clusters-a", "hc-a-2"}
		w.store.replace(other.prefix()+"20260101T000000.000Z-00000000/chain", []byte("other"))
		for range 2 {
			if err := records.MarkDeleted(t.Context(), testPlane, Identity{}, time.Now()); err != nil {
				t.Fatal(err)
			}
			sleep(KeepDeleted - time.Hour)
			if n, err := records.RemoveDeleted(t.Context(), func(Plane) bool { return false }); n > 0 ||
				err != nil {
				t.Fatalf("%d were removed too early, %v", n, err)
			}
			sleep(2 * time.Hour)
			n, err := records.RemoveDeleted(t.Context(), func(p Plane) bool { return p == testPlane })
			if n > 0 || err != nil {
				t.Fatalf("%d of a cluster that exists were removed, %v", n, err)
			}
		}
		if err := records.MarkDeleted(t.Context(), testPlane, Identity{}, time.Now()); err != nil {
			t.Fatal(err)
		}
		sleep(KeepDeleted + time.Hour)
		if err := records.MarkDeleted(t.Context(), testPlane, Identity{}, time.Now()); err != nil { // again: the first counts
			t.Fatal(err)
		}
		n, err := records.RemoveDeleted(t.Context(), func(Plane) bool { return false })
		if n != 1 || err != nil {
			t.Fatalf("%d were removed, %v", n, err)
		}
		if names, _ := w.store.List(t.Context(), ""); len(names) != 1 || !strings.HasPrefix(names[0], other.prefix()) {
			t.Errorf("what is left: %v", names)
		}
	})
}

// No clock of a machine expires the backups of a deleted cluster: neither that of the machine that removes them, a year
// ahead, nor that of the one that has deleted the cluster, a year behind.
func TestI1NoClockOfAMachineExpiresTheBackupsOfADeletedCluster(t *testing.T) {
	const year = 365 * 24 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		store := newMemoryStore()
		store.replace(testPlane.prefix()+"20260101T000000.000Z-00000000/chain", []byte("x"))
		records := NewRecords(store, testKeys(t))
		remove := func() int {
			t.Helper()
			n, err := records.RemoveDeleted(t.Context(), func(Plane) bool { return false })
			if err != nil {
				t.Error(err)
			}
			return n
		}
		if err := records.MarkDeleted(t.Context(), testPlane, Identity{}, time.Now().Add(-year)); err != nil {
			t.Fatal(err)
		}
		if n := remove(); n != 0 {
			t.Error("a cluster that a machine with a clock a year behind has deleted has lost its backups at once")
		}
		sleep(year)
		store.setBehind(year) // so no time has passed, and this machine's clock is a year ahead
		if n := remove(); n != 0 {
			t.Error("a machine with a clock a year ahead has removed the backups at once")
		}
		sleep(KeepDeleted - time.Second)
		if n := remove(); n != 0 {
			t.Error("the backups were removed before the week has passed")
		}
		sleep(2 * time.Second)
		if n := remove(); n != 1 {
			t.Errorf("%d were removed after the week", n)
		}
	})
}

// Two management clusters with the same store remove the backups of deleted clusters at the same time: the second one
// finds nothing to do, which is no error.
func TestATombstoneThatAnotherHasRemovedIsNoError(t *testing.T) {
	store := newMemoryStore()
	records := NewRecords(store, testKeys(t))
	if err := records.MarkDeleted(t.Context(), testPlane, Identity{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	removedByAnother := func(p Plane) bool { // it is called between the list and the tombstone's read
		if err := store.Delete(t.Context(), deletedPrefix+p.String()); err != nil {
			t.Fatal(err)
		}
		return false
	}
	if n, err := records.RemoveDeleted(t.Context(), removedByAnother); n != 0 || err != nil {
		t.Errorf("%d were removed, %v", n, err)
	}
}
