package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// memoryKeeper is the disk of a machine.
type memoryKeeper struct{ id Identity }

func (k *memoryKeeper) Load() (Identity, error) { return k.id, nil }

func (k *memoryKeeper) Update(_ Owner, change func(Identity) Identity) error {
	k.id = change(k.id)
	return nil
}

// machine claims the plane for data that has an owner.
type machine struct {
	*Claimant
	disk *memoryKeeper
}

func newMachine(t *testing.T, store Store, owner Owner) machine {
	disk := &memoryKeeper{Identity{Owner: owner}}
	return machine{NewRecords(store, testKeys(t)).Claimant(testPlane, disk), disk}
}

// restarted is the machine after a restart of its process, or a machine with a copy of its disk.
func (m machine) restarted(t *testing.T) machine {
	disk := &memoryKeeper{m.disk.id}
	return machine{NewRecords(m.records.store, testKeys(t)).Claimant(testPlane, disk), disk}
}

// A plane is recovered on another management cluster while the first one is cut off. The first one comes back: its
// follower ends within seconds, it never claims the plane again, and its deletion of the cluster ends no backups, not
// even when the plane elsewhere makes no chain for weeks.
func TestI1AManagementClusterThatComesBackEndsNoBackups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stop()
		records := NewRecords(w.store, testKeys(t))
		first, second := newMachine(t, w.store, "first"), newMachine(t, w.store, "second")
		w.f.o.Claim = first.Claim
		w.run()
		w.write(10, time.Second)
		if exists, err := records.Exists(t.Context(), testPlane); !exists || err != nil {
			t.Fatalf("the backup: %v, %v", exists, err)
		}
		if err := second.Take(t.Context()); err != nil {
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
		if err := first.Claim(t.Context()); !errors.Is(err, ErrSuperseded) {
			t.Errorf("the first owner claims again: %v", err)
		}
		unused := func(Plane) bool { return false }
		for _, id := range []Identity{first.disk.id, {}} { // {}: the owner is not known any more
			if err := records.MarkDeleted(t.Context(), testPlane, id, time.Now()); err != nil {
				t.Fatal(err)
			}
			if exists, err := records.Exists(t.Context(), testPlane); !exists || err != nil {
				t.Errorf("after a deletion by owner %q the backup: %v, %v", id.Owner, exists, err)
			}
			sleep(KeepDeleted + time.Hour)
			if n, err := records.RemoveDeleted(t.Context(), unused); n != 0 || err != nil {
				t.Errorf("%d backups were removed after a deletion by owner %q, %v", n, id.Owner, err)
			}
		}
		if after, _ := w.store.List(t.Context(), ""); !slices.Equal(before, after) {
			t.Errorf("what is left: %v, want %v", after, before)
		}
		// The owner that has the plane deletes it, also after a tombstone that another one has left.
		w.store.replace(deletedPrefix+testPlane.String(), []byte(tombstone{time.Now(), "first"}.String()))
		if err := records.MarkDeleted(t.Context(), testPlane, second.disk.id, time.Now()); err != nil {
			t.Fatal(err)
		}
		if exists, err := records.Exists(t.Context(), testPlane); exists || err != nil {
			t.Errorf("after its deletion the backup: %v, %v", exists, err)
		}
		sleep(KeepDeleted + time.Hour)
		if n, err := records.RemoveDeleted(t.Context(), unused); n != 1 || err != nil {
			t.Errorf("%d backups were removed, %v", n, err)
		}
		if names, _ := w.store.List(t.Context(), ""); len(names) != 0 {
			t.Errorf("what is left after the deletion: %v", strings.Join(names, ", "))
		}
	})
}

// sealOwners stores a list of owners as a machine of the region does.
func sealOwners(t *testing.T, store Store, o owners) {
	t.Helper()
	if err := NewRecords(store, testKeys(t)).put(t.Context(), testPlane, o); err != nil {
		t.Fatal(err)
	}
}

// Two owners that claim at the same time: one of them has the plane, and the other finds that out.
func TestOfTwoClaimsOneLasts(t *testing.T) {
	store := newMemoryStore()
	a, b := newMachine(t, store, "a"), newMachine(t, store, "b")
	if err := b.Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	of := store.content(ownersPrefix + testPlane.String())
	store.replace(ownersPrefix+testPlane.String(), nil)
	if err := a.Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	store.replace(ownersPrefix+testPlane.String(), of) // b had read that there is no list before a wrote it
	var superseded []Owner
	for range 3 {
		for _, m := range []machine{a, b} {
			if err := m.Claim(t.Context()); errors.Is(err, ErrSuperseded) {
				superseded = append(superseded, m.disk.id.Owner)
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	if !slices.Equal(superseded, []Owner{"b", "b", "b"}) {
		t.Errorf("superseded: %v", superseded)
	}
	for _, damaged := range []string{"{}", "", "x\ny"} {
		store.replace(ownersPrefix+testPlane.String(), []byte(damaged))
		if err := a.Claim(t.Context()); !errors.Is(err, ErrCorrupt) {
			t.Errorf("a damaged list of owners: %v", err)
		}
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
		recovered := newMachine(t, store, "recovered")
		if err := recovered.Take(t.Context()); err != nil {
			t.Fatal(err)
		}
		older := newMachine(t, store, "drawn later")
		for range 2 {
			if err := older.Claim(t.Context()); !errors.Is(err, ErrSuperseded) {
				t.Errorf("%s: older data claims the plane: %v", name, err)
			}
			for _, confirm := range []func(context.Context) error{recovered.Claim, recovered.Take} {
				if err := confirm(t.Context()); err != nil {
					t.Errorf("%s: the recovered plane: %v", name, err)
				}
			}
		}
		// The list is lost, and the recovered plane is the first that sees it.
		store.replace(ownersPrefix+testPlane.String(), nil)
		if err := recovered.restarted(t).Claim(t.Context()); err != nil {
			t.Errorf("%s: without a list: %v", name, err)
		}
		if err := older.Claim(t.Context()); !errors.Is(err, ErrSuperseded) {
			t.Errorf("%s: older data claims the plane whose list was lost: %v", name, err)
		}
		// Another recovery, and a plane that is new, do take it.
		if err := newMachine(t, store, "recovered again").Take(t.Context()); err != nil {
			t.Error(err)
		}
		if err := recovered.Take(t.Context()); !errors.Is(err, ErrSuperseded) {
			t.Errorf("%s: a superseded owner takes the plane: %v", name, err)
		}
	}
}

// Who can write the store but has no key ends no plane: not with a list that is not sealed, not with the sealed list of
// another plane, and not with one that the store had before.
func TestI1WhoOnlyWritesTheStoreEndsNoPlane(t *testing.T) {
	name, store := ownersPrefix+testPlane.String(), newMemoryStore()
	if err := newMachine(t, store, "first").Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	ofFirst := store.content(name)
	second := newMachine(t, store, "second")
	if err := second.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	good := store.content(name)
	if bytes.Contains(good, []byte("second")) {
		t.Error("the list shows the owner to everybody who reads the store")
	}
	if err := newMachine(t, store, "third").records.put(t.Context(), Plane{"other", "hc"},
		owners{Owners: []Owner{"x"}, Taken: "x", Draw: Draw{99, "x"}}); err != nil {
		t.Fatal(err)
	}
	forged := map[string][]byte{
		"not sealed":           []byte(`{"owners":["second","x"],"taken":"x","draw":{"serial":99,"word":"x"}}`),
		"of another plane":     store.content(ownersPrefix + "other/hc"),
		"of before":            ofFirst,
		"a bit of it is other": append(slices.Clone(good[:len(good)-1]), good[len(good)-1]^1),
	}
	for what, content := range forged {
		store.replace(name, content)
		for _, m := range []machine{second, second.restarted(t)} {
			if err := m.Claim(t.Context()); !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrSuperseded) {
				t.Errorf("%s: %v", what, err)
			}
			if err := m.records.MarkDeleted(t.Context(), testPlane, m.disk.id, time.Now()); err == nil &&
				store.content(deletedPrefix+testPlane.String()) != nil {
				t.Errorf("%s: a tombstone is stored", what)
			}
		}
	}
	store.replace(name, good)
	if err := second.Claim(t.Context()); err != nil {
		t.Errorf("with the list that it has stored: %v", err)
	}
}

// A home of the version before has lists that are not sealed. The first claim seals them, for the owner that they have.
func TestTheListsOfAVersionBeforeAreSealed(t *testing.T) {
	name, store := ownersPrefix+testPlane.String(), newMemoryStore()
	store.replace(name, []byte(`{"owners":["first","second"],"taken":"second"}`))
	if err := newMachine(t, store, "first").Claim(t.Context()); !errors.Is(err, ErrSuperseded) {
		t.Errorf("a superseded owner of the version before: %v", err)
	}
	second := newMachine(t, store, "second")
	for range 2 {
		if err := second.Claim(t.Context()); err != nil {
			t.Errorf("the owner of the version before: %v", err)
		}
	}
	if json.Valid(store.content(name)) {
		t.Errorf("the list is not sealed: %s", store.content(name))
	}
	if err := newMachine(t, store, "first").Claim(t.Context()); !errors.Is(err, ErrSuperseded) {
		t.Errorf("a superseded owner of the version before, of a sealed list: %v", err)
	}
}

// Two machines run with the same disk, and so with the same owner: one of them ends, and it is the one that claims
// after the other has drawn. Its deletion of the cluster ends no backups.
func TestI1OfTwoCopiesOfADiskOneEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemoryStore()
		store.replace(testPlane.prefix()+"20260101T000000.000Z-00000000/chain", []byte("x"))
		first := newMachine(t, store, "owner")
		claim := func(m machine) error {
			sleep(ownerEvery)
			return m.Claim(t.Context())
		}
		if err := claim(first); err != nil {
			t.Fatal(err)
		}
		early := first.restarted(t) // a copy, which starts after the machine has drawn again
		for range drawEvery/ownerEvery + 1 {
			if err := claim(first); err != nil {
				t.Fatal(err)
			}
		}
		if err := claim(early); !errors.Is(err, ErrSuperseded) {
			t.Errorf("a copy of a disk of before: %v", err)
		}
		if err := early.records.MarkDeleted(t.Context(), testPlane, early.disk.id, time.Now()); err != nil {
			t.Error(err)
		}
		if exists, err := early.records.Exists(t.Context(), testPlane); !exists || err != nil {
			t.Errorf("after the copy deleted its cluster, the backup: %v, %v", exists, err)
		}
		// A process that is started again, with draws that the store lost or answered late, is no copy.
		for range 3 {
			before := store.content(ownersPrefix + testPlane.String())
			first = first.restarted(t)
			if err := claim(first); err != nil {
				t.Fatalf("after a restart: %v", err)
			}
			store.replace(ownersPrefix+testPlane.String(), before)
			if err := claim(first); err != nil {
				t.Fatalf("after a write that came late: %v", err)
			}
		}
		// Both start from one copy at once: one of them goes on.
		one, two := first.restarted(t), first.restarted(t)
		var ended [2]bool
		for range 2*drawEvery/ownerEvery + 2 {
			for i, m := range []machine{one, two} {
				if ended[i] {
					continue
				}
				err := claim(m)
				if ended[i] = errors.Is(err, ErrSuperseded); !ended[i] && err != nil {
					t.Fatal(err)
				}
			}
		}
		if ended[0] == ended[1] {
			t.Errorf("of two copies that run at once have ended: %v", ended)
		}
	})
}

// While the store refuses writes no claim uses up the draws, and a write that it refused may have been stored.
func TestAClaimIsRepeatedWhileTheStoreRefusesIt(t *testing.T) {
	name, store := ownersPrefix+testPlane.String(), newMemoryStore()
	m := newMachine(t, store, "owner")
	store.setFault(func(op, _ string) error {
		if op == "put" {
			return errors.New("full")
		}
		return nil
	})
	for range 2 * maxDraws {
		if err := m.Claim(t.Context()); err == nil {
			t.Fatal("a claim that was not stored")
		}
	}
	if n := len(m.disk.id.Draws); n != 1 || m.disk.id.Confirmed {
		t.Errorf("the disk has %d draws, confirmed %v", n, m.disk.id.Confirmed)
	}
	store.setFault(nil)
	sealOwners(t, store, owners{Owners: []Owner{"owner"}, Draw: m.disk.id.Draws[0]}) // it was stored without an answer
	before := store.content(name)
	if err := m.Claim(t.Context()); err != nil || !m.disk.id.Confirmed {
		t.Errorf("%v, confirmed %v", err, m.disk.id.Confirmed)
	}
	if !bytes.Equal(before, store.content(name)) {
		t.Error("what was stored is stored again")
	}
}

// The list is lost, or replaced by one that is not sealed, while a machine with the plane is cut off. The plane is
// recovered elsewhere: the machine that comes back is superseded all the same, though the list of before had many
// claims.
func TestI1AFenceOutlivesALostListOfOwners(t *testing.T) {
	for name, list := range map[string][]byte{"lost": nil, "not sealed": []byte(`{"owners":["x"],"taken":"x"}`)} {
		synctest.Test(t, func(t *testing.T) {
			store := newMemoryStore()
			first := newMachine(t, store, "first")
			for range 2 * maxDraws * drawEvery / ownerEvery {
				if err := first.Claim(t.Context()); err != nil {
					t.Fatal(err)
				}
				sleep(ownerEvery)
			}
			store.replace(ownersPrefix+testPlane.String(), list)
			if err := newMachine(t, store, "second").Take(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, m := range []machine{first, first.restarted(t)} {
				if err := m.Claim(t.Context()); !errors.Is(err, ErrSuperseded) {
					t.Errorf("%s: the machine that comes back: %v", name, err)
				}
			}
		})
	}
}

// Who can write the store but has no key makes no recovery begin empty: a list that is not sealed shows no tombstone to
// be of the last owner.
func TestI1AForgedTombstoneStartsNoPlaneEmpty(t *testing.T) {
	store := newMemoryStore()
	store.replace(testPlane.prefix()+"20260101T000000.000Z-00000000/chain", []byte("x"))
	m := newMachine(t, store, "owner")
	if err := m.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	store.replace(ownersPrefix+testPlane.String(), []byte(`{"owners":["x"],"taken":"x"}`))
	store.replace(deletedPrefix+testPlane.String(), []byte(tombstone{time.Now(), "x"}.String()))
	if exists, err := m.records.Exists(t.Context(), testPlane); !exists && err == nil {
		t.Error("a plane whose cluster was not deleted has no backup")
	}
}
