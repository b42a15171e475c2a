package backup

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A plane is recovered on another management cluster while the first one is cut off. The first one comes back: its
// follower ends within seconds, it never claims the plane again, and its deletion of the cluster ends no backups, not
// even when the plane elsewhere makes no chain for weeks.
func TestI1AManagementClusterThatComesBackEndsNoBackups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stop()
		w.f.o.Owner = func() (Owner, error) { return "first", nil }
		w.run()
		w.write(10, time.Second)
		if exists, err := Exists(t.Context(), w.store, testPlane); !exists || err != nil {
			t.Fatalf("the backup: %v, %v", exists, err)
		}
		if err := Take(t.Context(), w.store, testPlane, "second"); err != nil {
			t.Fatal(err)
		}
		sleep(2 * ownerEvery)
		if !w.f.State().Superseded {
			t.Error("the follower goes on though another owner has the plane")
		}
		w.stop()
		before, _ := w.store.List(t.Context(), "")
		w.run() // hosting is restarted
		sleep(time.Minute)
		w.stop()
		if after, _ := w.store.List(t.Context(), ""); !slices.Equal(before, after) {
			t.Errorf("a superseded follower has stored objects: %v, then %v", before, after)
		}
		if err := Claim(t.Context(), w.store, testPlane, "first"); !errors.Is(err, ErrSuperseded) {
			t.Errorf("the first owner claims again: %v", err)
		}
		unused := func(Plane) bool { return false }
		for _, owner := range []Owner{"first", ""} { // by this version, and by one that does not know its owner any more
			if err := MarkDeleted(t.Context(), w.store, testPlane, owner, time.Now()); err != nil {
				t.Fatal(err)
			}
			if exists, err := Exists(t.Context(), w.store, testPlane); !exists || err != nil {
				t.Errorf("after a deletion by owner %q the backup: %v, %v", owner, exists, err)
			}
			sleep(KeepDeleted + time.Hour)
			if n, err := RemoveDeleted(t.Context(), w.store, unused, time.Now()); n != 0 || err != nil {
				t.Errorf("%d backups were removed after a deletion by owner %q, %v", n, owner, err)
			}
		}
		if after, _ := w.store.List(t.Context(), ""); !slices.Equal(before, after) {
			t.Errorf("what is left: %v, want %v", after, before)
		}
		// The owner that has the plane deletes it, also after a tombstone that another one has left.
		w.store.replace(deletedPrefix+testPlane.String(), []byte(tombstone{time.Now(), "first"}.String()))
		if err := MarkDeleted(t.Context(), w.store, testPlane, "second", time.Now()); err != nil {
			t.Fatal(err)
		}
		if exists, err := Exists(t.Context(), w.store, testPlane); exists || err != nil {
			t.Errorf("after its deletion the backup: %v, %v", exists, err)
		}
		sleep(KeepDeleted + time.Hour)
		if n, err := RemoveDeleted(t.Context(), w.store, unused, time.Now()); n != 1 || err != nil {
			t.Errorf("%d backups were removed, %v", n, err)
		}
		if names, _ := w.store.List(t.Context(), ""); len(names) != 0 {
			t.Errorf("what is left after the deletion: %v", strings.Join(names, ", "))
		}
	})
}

// Two owners that claim at the same time: one of them has the plane, and the other finds that out.
func TestOfTwoClaimsOneLasts(t *testing.T) {
	store := newMemoryStore()
	if err := Claim(t.Context(), store, testPlane, "a"); err != nil {
		t.Fatal(err)
	}
	store.replace(ownersPrefix+testPlane.String(), []byte(`{"owners":["b"]}`)) // b had read the list before a wrote it
	var superseded []Owner
	for range 3 {
		for _, o := range []Owner{"a", "b"} {
			if err := Claim(t.Context(), store, testPlane, o); errors.Is(err, ErrSuperseded) {
				superseded = append(superseded, o)
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	if !slices.Equal(superseded, []Owner{"b", "b", "b"}) {
		t.Errorf("superseded: %v", superseded)
	}
	store.replace(ownersPrefix+testPlane.String(), []byte("{}"))
	if err := Claim(t.Context(), store, testPlane, "a"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a damaged list of owners: %v", err)
	}
}

// A management cluster comes back with the data of a version without owners, or with that of a disk of an earlier day,
// after its cluster was recovered elsewhere: its owner is not in the list, and must not stop the plane that was
// recovered.
func TestI1AnOwnerOfOlderDataNeverEndsARecoveredPlane(t *testing.T) {
	for name, before := range map[string]string{"never claimed": "", "claimed": `{"owners":["of the first"]}`} {
		store := newMemoryStore()
		if before != "" {
			store.replace(ownersPrefix+testPlane.String(), []byte(before))
		}
		if err := Take(t.Context(), store, testPlane, "recovered"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := Claim(t.Context(), store, testPlane, "drawn later"); !errors.Is(err, ErrSuperseded) {
				t.Errorf("%s: older data claims the plane: %v", name, err)
			}
			for _, confirm := range []func(context.Context, Store, Plane, Owner) error{Claim, Take} {
				if err := confirm(t.Context(), store, testPlane, "recovered"); err != nil {
					t.Errorf("%s: the recovered plane: %v", name, err)
				}
			}
		}
		// Another recovery, and a plane that is new, do take it.
		if err := Take(t.Context(), store, testPlane, "recovered again"); err != nil {
			t.Error(err)
		}
		if err := Take(t.Context(), store, testPlane, "recovered"); !errors.Is(err, ErrSuperseded) {
			t.Errorf("%s: a superseded owner takes the plane: %v", name, err)
		}
	}
}
