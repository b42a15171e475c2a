package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/hosting/controlplane"
)

// Everything of a plane that its process holds on to follows its slot, and a plane without one is as it ever was. The
// plane is listed by its cluster's name, and its deletion deletes the slot's directory.
func TestAPlaneIsWhereItsSlotIs(t *testing.T) {
	dir := t.TempDir()
	slot := controlplane.ID{Namespace: controlplane.WarmNamespace, Name: "k3x9"}
	moved, plain := controlplane.ID{Namespace: "n", Name: "moved"}, controlplane.ID{Namespace: "n", Name: "plain"}
	writeFiles(t, dir, map[string]string{
		"state/n/moved/slot": "k3x9\n", "state/n/moved/hosting.json": `{"port":30017}`,
		"planes/_warm/k3x9/etcd/db": "moved", "planes/n/plain/etcd/db": "plain", "layout": presentLayout,
	})
	r := openHome(t, dir)
	for id, want := range map[controlplane.ID]controlplane.ID{moved: slot, plain: plain} {
		x, err := r.runner(id)
		if err != nil {
			t.Fatal(err)
		}
		if x.slot != want || x.dir != filepath.Join(dir, "planes", want.Namespace, want.Name) || r.Dir(id) != x.dir {
			t.Errorf("%s has the slot %s and the directory %s", id, x.slot, x.dir)
		}
		if o, err := r.Observe(id); err != nil || !o.HasData {
			t.Errorf("%s has no data: %+v, %v", id, o, err)
		}
	}
	if r.ports.taken[30017] != slot {
		t.Errorf("the port is that of %s", r.ports.taken[30017])
	}
	if list := r.List(); len(list) != 2 {
		t.Errorf("the list is %v", list)
	}
	if err := r.home.remove(moved); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{r.home.slotDir(slot), r.home.state(moved)} {
		if _, err := os.Lstat(gone); err == nil {
			t.Errorf("%s is left", gone)
		}
	}
}

// A plane whose slot cannot be read does not start without its data, and is not deleted without it.
func TestAPlaneWithADamagedSlotStays(t *testing.T) {
	dir := t.TempDir()
	id := controlplane.ID{Namespace: "n", Name: "damaged"}
	writeFiles(t, dir, map[string]string{"state/n/damaged/slot": "../../etc\n", "layout": presentLayout})
	r := openHome(t, dir)
	if _, err := r.Observe(id); err == nil || !strings.Contains(err.Error(), "names no slot") {
		t.Errorf("observed: %v", err)
	}
	if err := r.Ensure(id, controlplane.Spec{Release: "1.36.3"}); err == nil {
		t.Error("the plane was ordered")
	}
	if done, err := r.Discard(id); done || err == nil {
		t.Errorf("discarded: %v, %v", done, err)
	}
	if _, err := os.Stat(filepath.Join(r.home.state(id), slotName)); err != nil {
		t.Error(err)
	}
}
