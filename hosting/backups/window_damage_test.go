package backups

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"atoll.dev/backup"
	"atoll.dev/backup/storetest"
	"atoll.dev/hosting/controlplane"
)

// A chain that a restore could not read is shown as damaged, also when another one was restored, until a restore reads
// it or it is gone. It is not the beginning of the window, and hides no other chain.
func TestTheWindowShowsDamagedChains(t *testing.T) {
	changes := 0
	b := New(Options{})
	b.changed = func(controlplane.ID) { changes++ }
	id := controlplane.ID{Namespace: "clusters-a", Name: "hc-a"}
	noon := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	chain := func(name string, hour, generation int) backup.Chain {
		return backup.Chain{Name: name, Taken: noon.Add(time.Duration(hour) * time.Hour), Whole: true,
			Order: backup.Order{Generation: generation, Period: noon}}
	}
	planted := chain("planted", -9, 9)
	planted.Period = noon.Add(-10 * time.Hour) // as if the clock had been set back behind all other chains
	list := []backup.Chain{chain("a", 1, 1), chain("b", 2, 2), planted}
	expect := func(when string, from time.Time, want ...string) {
		t.Helper()
		w, _ := b.Window(id)
		var got []string
		for _, c := range w.Chains {
			got = append(got, map[bool]string{true: "damaged", false: "good"}[c.Damaged])
		}
		if !slices.Equal(got, want) || !w.From.Equal(from) {
			t.Errorf("%s: the window is %+v", when, w)
		}
	}
	corrupt := func(name string) error { return &backup.ChainError{Chain: name, Err: backup.ErrCorrupt} }

	b.noteRead(id, backup.Fetched{Chain: "b", Damage: corrupt("planted")}, nil)
	if len(b.damaged) != 0 {
		t.Errorf("of a plane without a list, %v is kept", b.damaged)
	}
	b.setWindow(id, nil, list)
	b.noteRead(id, backup.Fetched{Chain: "b", Damage: corrupt("planted")}, nil)
	expect("a planted chain", noon.Add(time.Hour), "good", "good", "damaged")
	changes = 0
	b.noteRead(id, backup.Fetched{}, errors.Join(corrupt("a"), errors.New("a store that does not answer")))
	expect("another one is damaged", noon.Add(2*time.Hour), "damaged", "good", "damaged")
	b.noteRead(id, backup.Fetched{}, corrupt("a"))
	if changes != 1 {
		t.Errorf("hosting was told %d times", changes)
	}
	b.noteRead(id, backup.Fetched{Chain: "a"}, nil)
	expect("it was read", noon.Add(time.Hour), "good", "good", "damaged")
	b.setWindow(id, nil, list[:2])
	expect("the planted one is gone", noon.Add(time.Hour), "good", "good")

	b.followers[id] = &follower{end: time.NewTimer(time.Hour)} // the plane is being deleted
	if !b.Abandon(id) {
		t.Error("something is still going on")
	}
	b.setWindow(id, b.followers[id], list)
	b.noteRead(id, backup.Fetched{}, corrupt("a"))
	delete(b.followers, id)
	if _, isKnown := b.Window(id); isKnown || len(b.listed)+len(b.damaged) != 0 {
		t.Error("the window of a deleted plane is known")
	}
}

// Planted chains, however many, take no good one out of the window.
func TestPlantedChainsTakeNoRoomInTheWindow(t *testing.T) {
	b := New(Options{})
	b.changed = func(controlplane.ID) {}
	id := controlplane.ID{Namespace: "clusters-a", Name: "hc-a"}
	noon := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	var list []backup.Chain
	var damage []error
	for i := range 2 * maxChains {
		name := strconv.Itoa(i)
		list = append(list, backup.Chain{Name: name, Taken: noon.Add(time.Duration(i) * time.Minute), Whole: true,
			Order: backup.Order{Generation: i + 1, Period: noon}})
		if i >= 3 {
			damage = append(damage, &backup.ChainError{Chain: name, Err: backup.ErrCorrupt})
		}
	}
	b.setWindow(id, nil, list)
	b.noteRead(id, backup.Fetched{}, errors.Join(damage...))
	w, _ := b.Window(id)
	good := slices.DeleteFunc(slices.Clone(w.Chains), func(c controlplane.BackupChain) bool { return c.Damaged })
	if len(w.Chains) != maxChains || len(good) != 3 || !w.From.Equal(noon) {
		t.Errorf("%d chains, %d of them good, from %s", len(w.Chains), len(good), w.From)
	}
}

// A dry run of a restore records which chains it could not read, also when it fails.
func TestARestoreRecordsWhatItCouldNotRead(t *testing.T) {
	store := storetest.NewMemory()
	b := New(Options{Store: store, Spool: t.TempDir()})
	b.changed = func(controlplane.ID) {}
	id := controlplane.ID{Namespace: "clusters-a", Name: "hc-a"}
	const name = "20261128T120000.000Z-0123abcd"
	for _, object := range []string{"chain", "order-00000001-20261128T120000.000Z", "log-00000001"} {
		if err := store.Put(t.Context(), "clusters-a/hc-a/"+name+"/"+object, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	chains, err := backup.Chains(context.Background(), store, backup.Plane(id))
	if err != nil || len(chains) != 1 {
		t.Fatalf("%+v, %v", chains, err)
	}
	b.setWindow(id, nil, chains)
	order := controlplane.RestoreOrder{Source: id, At: chains[0].Taken.Add(time.Hour)}
	if _, err := b.fetch(t.Context(), order, t.TempDir()); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("the restore: %v", err)
	}
	if w, _ := b.Window(id); len(w.Chains) != 1 || !w.Chains[0].Damaged || !w.From.IsZero() {
		t.Errorf("the window is %+v", w)
	}
}
