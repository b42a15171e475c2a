package process

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"atoll.dev/api/rotation"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
)

func TestThePoolOfWarmPlanes(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	ready := func(name string, age time.Duration) warmPlane {
		return warmPlane{ID: controlplane.ID{Namespace: controlplane.WarmNamespace, Name: name}, Made: now.Add(-age),
			Known: now.Add(-min(age, warmLimit)), IsReady: true}
	}
	ended := ready("ended", time.Minute)
	ended.MustEnd = true
	old, young := ready("old", time.Hour), ready("young", time.Minute)
	starting := ready("starting", time.Second)
	starting.IsReady = false
	stuck, restarted := ready("stuck", 2*warmLimit), ready("restarted", time.Hour)
	stuck.IsReady, stuck.Known = false, now.Add(-warmLimit-1)
	restarted.IsReady, restarted.Known = false, now.Add(-time.Second)
	aged, older := ready("aged", 25*time.Hour), ready("older", 26*time.Hour)
	for name, c := range map[string]struct {
		planes []warmPlane
		wanted int
		memory int64
		busy   time.Time
		end    []string
		start  bool
	}{
		"an empty pool is filled, one plane at a time": {wanted: 2, memory: math.MaxInt64, start: true},
		"the next one starts when the first is ready": {
			planes: []warmPlane{old}, wanted: 2, memory: math.MaxInt64,
			start: true,
		},
		"and not before": {
			planes: []warmPlane{starting}, wanted: 2, memory: math.MaxInt64,
		},
		"a full pool stays": {
			planes: []warmPlane{old, young}, wanted: 2, memory: math.MaxInt64,
		},
		"no plane starts beside those of customers": {
			wanted: 1, memory: math.MaxInt64, busy: now.Add(-warmRest / 2),
		},
		"it starts when they have started": {
			wanted: 1, memory: math.MaxInt64, busy: now.Add(-warmRest),
			start: true,
		},
		"no plane starts with little memory": {
			planes: []warmPlane{old}, wanted: 2, memory: warmStart - 1,
		},
		"nor when nobody knows how much there is": {wanted: 1, memory: -1},
		"and then none ends":                      {planes: []warmPlane{old}, wanted: 1, memory: -1},
		"with less memory one ends, the youngest": {
			planes: []warmPlane{young, old}, wanted: 2, memory: warmEnd - 1,
			end: []string{"young"},
		},
		"or the one that is not ready": {
			planes: []warmPlane{starting, old}, wanted: 2, memory: warmEnd - 1,
			end: []string{"starting"},
		},
		"while one ends, none starts": {
			planes: []warmPlane{ended}, wanted: 1, memory: math.MaxInt64,
			end: []string{"ended"},
		},
		"one that does not become ready is replaced": {
			planes: []warmPlane{stuck}, wanted: 2, memory: math.MaxInt64,
			end: []string{"stuck"},
		},
		"one that starts again after a restart is not": {
			planes: []warmPlane{restarted}, wanted: 1, memory: math.MaxInt64,
		},
		"fewer are wanted": {
			planes: []warmPlane{starting, young, old}, wanted: 1, memory: math.MaxInt64,
			end: []string{"young", "starting"},
		},
		"none is wanted": {
			planes: []warmPlane{old}, wanted: 0, memory: -1,
			end: []string{"old"},
		},
		"one that has waited for a day is replaced": {
			planes: []warmPlane{aged, young}, wanted: 2, memory: math.MaxInt64,
			end: []string{"aged"},
		},
		"of two such, the older one": {
			planes: []warmPlane{aged, older}, wanted: 2, memory: math.MaxInt64,
			end: []string{"older"},
		},
		"and the other one when the pool is full again": {
			planes: []warmPlane{aged}, wanted: 2, memory: math.MaxInt64,
			start: true,
		},
	} {
		end, start := decideWarm(warmSituation{Planes: c.planes, Wanted: c.wanted, Memory: c.memory, Busy: c.busy}, now)
		var names []string
		for _, id := range end {
			names = append(names, id.Name)
		}
		if !slices.Equal(names, c.end) || start != c.start {
			t.Errorf("%s: %v end, start %v; want %v, %v", name, names, start, c.end, c.start)
		}
	}
}

// Only the first start of a cluster whose owner has chosen nothing gets a warm plane.
func TestWhichClusterGetsAWarmPlane(t *testing.T) {
	w := Warm{Planes: 1, Spec: controlplane.Spec{Release: "1.36.3", ServerNames: []string{"*.hosted.example"},
		ServiceCIDR: "172.31.0.0/16", Size: cluster.Small}}
	fits := controlplane.Spec{Name: "hc", Release: "1.36.3", ServerNames: []string{"hc.hosted.example"},
		ServiceCIDR: "172.31.0.0/16", Size: cluster.Small, Nodes: 3}
	if !w.fits(fits) {
		t.Error("a cluster of default shape does not fit")
	}
	if (Warm{Spec: w.Spec}).fits(fits) {
		t.Error("a pool without planes fits")
	}
	for name, change := range map[string]func(*controlplane.Spec){
		"another release":    func(s *controlplane.Spec) { s.Release = "1.36.4" },
		"another network":    func(s *controlplane.Spec) { s.ServiceCIDR = "10.0.0.0/16" },
		"another size":       func(s *controlplane.Spec) { s.Size = cluster.Medium },
		"no size":            func(s *controlplane.Spec) { s.Size = "" },
		"a name of its own":  func(s *controlplane.Spec) { s.ServerNames = []string{"api.example.com"} },
		"a deeper name":      func(s *controlplane.Spec) { s.ServerNames = []string{"a.b.hosted.example"} },
		"the parent domain":  func(s *controlplane.Spec) { s.ServerNames = []string{"hosted.example"} },
		"one name of two":    func(s *controlplane.Spec) { s.ServerNames = append(s.ServerNames, "api.example.com") },
		"no name":            func(s *controlplane.Spec) { s.ServerNames = nil },
		"restored data":      func(s *controlplane.Spec) { s.Data = controlplane.Recovery },
		"a copy":             func(s *controlplane.Spec) { s.Copy = "c" },
		"emulated version":   func(s *controlplane.Spec) { s.EmulatedVersion = "1.35" },
		"rotated encryption": func(s *controlplane.Spec) { s.Rotations.Encryption = rotation.Order{ID: "r"} },
	} {
		s := fits
		s.ServerNames = slices.Clone(fits.ServerNames)
		if change(&s); w.fits(s) {
			t.Errorf("%s fits", name)
		}
	}
}

// A cluster of which anything is on the disk gets no warm plane, and the warm plane stays warm (I12).
func TestI12AWarmPlaneIsGivenOnce(t *testing.T) {
	dir := t.TempDir()
	h := home{dir}
	warm := controlplane.ID{Namespace: controlplane.WarmNamespace, Name: "k3x9"}
	id := func(name string) controlplane.ID { return controlplane.ID{Namespace: "n", Name: name} }
	writeFiles(t, dir, map[string]string{"state/_warm/k3x9/slot": "k3x9\n", "planes/_warm/k3x9/etcd/db": "x",
		"planes/n/data/etcd/db": "of a cluster", "state/n/state/backup-owner": "of a cluster"})
	if err := h.giveState(warm, id("data")); !errors.Is(err, errPlaneExists) {
		t.Errorf("given to a cluster with data: %v", err)
	}
	if err := h.giveState(warm, id("state")); err == nil {
		t.Error("given to a cluster with a state")
	}
	if ids := h.warmPlanes(); !slices.Equal(ids, []controlplane.ID{warm}) {
		t.Errorf("the warm planes are %v", ids)
	}
	if err := h.giveState(warm, id("first")); err != nil {
		t.Fatal(err)
	}
	if err := h.giveState(warm, id("second")); err == nil {
		t.Error("given twice")
	}
	if slot, err := h.slotOf(id("first")); err != nil || slot != warm || len(h.warmPlanes()) > 0 {
		t.Errorf("its slot is %s, %v; warm are %v", slot, err, h.warmPlanes())
	}
	if _, err := os.Stat(filepath.Join(h.plane(id("first")), "etcd", "db")); err != nil {
		t.Error(err)
	}
}
