package local

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/api/platform"
	"atoll.dev/gitops"
)

var ownPrograms = Binaries{Atoll: "atoll", Kube: "atoll-kube", KubeVersion: "1.36.3"}

const machine = 20 << 10 // MiB

// fullDeclaration sets each value of a declaration.
func fullDeclaration() gitops.Declaration {
	return gitops.Declaration{Environment: "e", Sector: "s", Region: "r",
		Versions: gitops.Versions{Atoll: "1", Images: map[string]string{"clm": "2"}, Charts: map[string]string{"c": "1"},
			Releases: []string{"1.36.3", "1.35.7"}},
		Services: gitops.Services{Broker: "b:1", Replicas: map[string]int64{"clm": 2, "platform": 1, "adapter": 9, "x": 2},
			Traces: "http://t", PlacementShownTo: "customers", RecoverLostAfter: "30m"},
		ManagementClusters: []gitops.DeclaredCluster{{Name: "mc01-r", Settings: gitops.ManagementClusterSettings{
			Labels: map[string]string{"a": "b"}, Capacity: map[string]int64{"planes": 1}, Releases: []string{"1.35.7"},
			Cordoned: true}}}}
}

// TestEachDeclaredValueIsAppliedOrShown changes each value of a declaration. A change is a difference to the region
// that runs as declared before, or `region status` shows that the value has no effect here.
func TestEachDeclaredValueIsAppliedOrShown(t *testing.T) {
	fields := func(v any) (n int) { return reflect.TypeOf(v).NumField() }
	changes := map[string]func(*gitops.Declaration){
		"environment":               func(d *gitops.Declaration) { d.Environment = "other" },
		"region":                    func(d *gitops.Declaration) { d.Region = "other" },
		"versions.atoll":            func(d *gitops.Declaration) { d.Versions.Atoll = "other" },
		"versions.images":           func(d *gitops.Declaration) { d.Versions.Images = map[string]string{"clm": "other"} },
		"versions.charts":           func(d *gitops.Declaration) { d.Versions.Charts = map[string]string{"c": "other"} },
		"versions.releases":         func(d *gitops.Declaration) { d.Versions.Releases = []string{"1.35.7"} },
		"services.broker":           func(d *gitops.Declaration) { d.Services.Broker = "other:1" },
		"services.replicas.clm":     func(d *gitops.Declaration) { d.Services.Replicas["clm"] = 3 },
		"services.traces":           func(d *gitops.Declaration) { d.Services.Traces = "http://other" },
		"services.placementShownTo": func(d *gitops.Declaration) { d.Services.PlacementShownTo = "operators" },
		"services.recoverLostAfter": func(d *gitops.Declaration) { d.Services.RecoverLostAfter = "1h" },
		"mc01-r labels": func(d *gitops.Declaration) {
			d.ManagementClusters[0].Settings.Labels = map[string]string{"a": "other"}
		},
		"mc01-r capacity": func(d *gitops.Declaration) {
			d.ManagementClusters[0].Settings.Capacity = map[string]int64{"memory_mib": 1}
		},
		"mc01-r releases": func(d *gitops.Declaration) { d.ManagementClusters[0].Settings.Releases = nil },
		"mc01-r":          func(d *gitops.Declaration) { d.ManagementClusters[0].Settings.Cordoned = false },
	}
	valuesOf := func(d gitops.Declaration) values {
		t.Helper()
		v, err := declaredValues(d, machine, ownPrograms)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	have := valuesOf(fullDeclaration())
	for what, change := range changes {
		d := fullDeclaration()
		change(&d)
		drift := compareValues(nil, valuesOf(d), have)
		unapplied := UnappliedValues(d, ownPrograms)
		isApplied := slices.ContainsFunc(drift, func(x Drift) bool { return x.What == what })
		isShown := slices.ContainsFunc(unapplied, func(x Unapplied) bool { return x.What == what && x.Reason != "" })
		if !isApplied && !isShown || len(drift) > 1 {
			t.Errorf("%s: drift %v, shown %v", what, drift, unapplied)
		}
	}
	// helmvalues_test.go is about the values of Helm.
	known := fields(gitops.Declaration{}) - 5 /* its structs */ + fields(gitops.Versions{}) + fields(gitops.Services{}) +
		fields(gitops.DeclaredCluster{}) - 2 + fields(gitops.ManagementClusterSettings{})
	const rest = 2 // the sector has no effect in a region, and a cluster of another name is another one
	if len(changes)+rest != known {
		t.Errorf("a declaration has %d values; %d are changed here", known, len(changes)+rest)
	}
}

func TestValuesWithoutEffectOnOneMachineAreShown(t *testing.T) {
	shown := map[string]string{}
	for _, v := range UnappliedValues(fullDeclaration(), ownPrograms) {
		if v.Reason == "" {
			t.Errorf("%s has no reason", v.What)
		}
		shown[v.What] = v.Declared
	}
	want := map[string]string{"versions.images": `{"clm":"2"}`, "versions.charts": `{"c":"1"}`,
		"versions.releases": `["1.35.7"]`, "services.replicas.adapter": "9", "services.replicas.x": "2",
		"services.broker": `"b:1"`, "mc01-r releases": `["1.35.7"]`}
	if !maps.Equal(shown, want) {
		t.Errorf("shown are %v, want %v", shown, want)
	}
	builtIn := gitops.Declaration{Services: gitops.Services{PlacementShownTo: "operators"}}
	if none := UnappliedValues(builtIn, ownPrograms); len(none) > 0 {
		t.Errorf("without declared values, shown are %v", none)
	}
}

// TestDriftComparesThreeSides has a row for each pair of sides that can differ.
func TestDriftComparesThreeSides(t *testing.T) {
	side := func(changed ...string) values {
		v := values{"a": "1", "b": "1", "mc01": "Ready", "mc01 labels": "x=y"}
		for i := 0; i < len(changed); i += 2 {
			if v[changed[i]] = changed[i+1]; changed[i+1] == "" {
				delete(v, changed[i])
			}
		}
		return v
	}
	for _, c := range []struct {
		name                        string
		declared, rendered, running values
		want                        []Drift
	}{
		{"all are alike", side(), side(), side(), []Drift{}},
		{"not rendered yet", side("a", "2"), side(), side(), []Drift{{"a", "2", "1", "1"}}},
		{"not applied yet", side("a", "2"), side("a", "2"), side(), []Drift{{"a", "2", "2", "1"}}},
		{"changed by hand in the rendered file", side(), side("a", "2"), side(), []Drift{{"a", "1", "2", "1"}}},
		{"three values", side("a", "3"), side("a", "2"), side(), []Drift{{"a", "3", "2", "1"}}},
		{"no tree", nil, side("a", "2"), side(), []Drift{{"a", "", "2", "1"}}},
		{"a missing cluster has no labels", side(), side(), side("mc01", "", "mc01 labels", ""),
			[]Drift{{"mc01", "Ready", "Ready", "absent"}}},
		{"an undeclared cluster", side("mc01", "", "mc01 labels", ""), side(), side(),
			[]Drift{{"mc01", "absent", "Ready", "Ready"}}},
		{"no region", nil, values{"region": "r"}, values{}, []Drift{{"region", "", "r", "absent"}}},
		{"a process is away", side(), side(), side("process clm", "starting"),
			[]Drift{{"process clm", "ready", "ready", "starting"}}},
	} {
		if difference := cmp.Diff(c.want, compareValues(c.declared, c.rendered, c.running)); difference != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, difference)
		}
	}
}

func TestRunningClustersAreThoseOfTheMachineAndTheDeclaration(t *testing.T) {
	const ready = platform.ManagementClusterStateReady
	got := values{}
	got.addRegistered(State{Clusters: names{"same", "extra", "unregistered"}}, declared("same", "missing"),
		[]platform.ManagementCluster{{Name: "same", State: ready}, {Name: "extra", State: ready},
			{Name: "elsewhere", State: ready}})
	states := values{"same": "Ready", "extra": "Ready", "unregistered": "not registered"}
	maps.DeleteFunc(got, func(what, _ string) bool { return what != "elsewhere" && states[what] == "" })
	if !maps.Equal(got, states) {
		t.Errorf("running are %v, want %v", got, states)
	}
}

// TestADeclarationSetsTheProcessesOfARegion: the specs of a region have the declared replicas, releases, collector and
// readers of placements; an own port of health for each replica, and shared ports of the API.
func TestADeclarationSetsTheProcessesOfARegion(t *testing.T) {
	h, st := newHome(t)
	settings, err := settingsOf(fullDeclaration())
	if err != nil {
		t.Fatal(err)
	}
	st.Settings, st.Clusters = settings, names{"mc01-r"}
	if err := h.assignPorts(st.Ports, portNames(st)); err != nil {
		t.Fatal(err)
	}
	specs := map[string]Spec{}
	owners := map[int]string{}
	for _, s := range newTopology(h, st, ownPrograms).specs() {
		specs[s.Name] = s
		for _, port := range s.Ports {
			if owners[port] != "" || port == 0 {
				t.Errorf("%s has the port %d of %q", s.Name, port, owners[port])
			}
			owners[port] = s.Name
		}
	}
	for name, want := range map[string]bool{"clm": true, "clm-2": true, "clm-3": false, "platform": true,
		"platform-2": false, "maestro-2": false, "adapter-4": true, "adapter-5": false} {
		if _, has := specs[name]; has != want {
			t.Errorf("the process %s is there: %t, want %t", name, has, want)
		}
	}
	first, second := specs["clm"], specs["clm-2"]
	shared := []int{st.Ports[clmPort]}
	if !slices.Equal(first.SharedPorts, shared) || !slices.Equal(second.SharedPorts, shared) ||
		!slices.Contains(second.Args, "--share-ports") || !slices.Contains(second.After, "clm") {
		t.Errorf("clm-2 shares %v with clm, after %v: %v", second.SharedPorts, second.After, second.Args)
	}
	for _, spec := range []Spec{first, second} {
		if i := slices.Index(spec.Args, "--release"); i < 0 || spec.Args[i+1] != "1.36.3" ||
			slices.Contains(spec.Args, "1.35.7") || !slices.Contains(spec.Env, "OTEL_EXPORTER_OTLP_ENDPOINT=http://t") {
			t.Errorf("%s has %v, %v", spec.Name, spec.Args, spec.Env)
		}
	}
	if !slices.Contains(specs["platform"].Args, "customers") {
		t.Errorf("platform has %v", specs["platform"].Args)
	}
	limits := st.limitsOf("mc01-r", machine, ownPrograms)
	want := platform.ManagementClusterUpdate{Capacity: platform.Capacity{"planes": 1, "memory_mib": 16 << 10},
		Versions: []string{"1.35.7"}}
	if difference := cmp.Diff(want, limits); difference != "" {
		t.Errorf("limits (-want +got):\n%s", difference)
	}
}
