package local

import (
	"slices"
	"testing"
)

// A home that made no backups makes some from the next start on, and keeps its ports.
func TestAHomeGetsBackupsLater(t *testing.T) {
	h, st := newHome(t)
	before, _, err := h.prepareState(UpOptions{ManagementClusters: 1})
	if err != nil {
		t.Fatal(err)
	}
	if h.BackupStore() != "" {
		t.Errorf("without backups there is the store %s", h.BackupStore())
	}
	yes := true
	after, _, err := h.prepareState(UpOptions{Backups: &yes})
	if err != nil {
		t.Fatal(err)
	}
	for name, port := range before.Ports {
		if after.Ports[name] != port {
			t.Errorf("%s moved from %d to %d", name, port, after.Ports[name])
		}
	}
	after, _, err = h.prepareState(UpOptions{}) // a start without the flag
	if err != nil || after.ID != st.ID {
		t.Fatal(after.ID, err)
	}
	specs := newTopology(h, after, Binaries{Atoll: "atoll", Kube: "atoll-kube", KubeVersion: "1.36.3"}).specs()
	find := func(name string) int { return slices.IndexFunc(specs, func(s Spec) bool { return s.Name == name }) }
	store, hosting := find(objectStoreName), find(hostingName("management-01"))
	if store < 0 || hosting < store {
		t.Fatalf("the store is process %d, hosting %d", store, hosting)
	}
	args := specs[hosting].Args
	if i := slices.Index(args, "--backups"); i < 0 || args[i+1] != h.BackupStore() ||
		!slices.Contains(specs[hosting].After, objectStoreName) || slices.Contains(specs[store].Ports, 0) {
		t.Errorf("hosting has %q after %q; the store's ports are %v", args, specs[hosting].After, specs[store].Ports)
	}
	if specs[store].Phase <= specs[hosting].Phase {
		t.Error("the store stops before hosting")
	}
}
