package local

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"atoll.dev/test/testsite"
)

func newHome(t *testing.T) (Home, State) {
	t.Helper()
	h, err := OpenHome(filepath.Join(t.TempDir(), "home"))
	if err != nil {
		t.Fatal(err)
	}
	st, err := h.create("local-1", "")
	if err != nil {
		t.Fatal(err)
	}
	return h, st
}

// recordSupervisor records this process as the supervisor of the home: the region runs.
func recordSupervisor(t *testing.T, h Home) {
	t.Helper()
	self, err := readStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	record := Record{Name: supervisorName, PID: os.Getpid(), Start: self.start, Boot: bootID()}
	if err := writeJSON(h.recordPath(supervisorName), record); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition that other processes bring about.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(testsite.HangLimit); !f(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", testsite.HangLimit, what)
		}
	}
}

func TestAHomeIsMadeInAnEmptyDirectoryOnly(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (Home{dir}).create("local-1", ""); err == nil || !strings.Contains(err.Error(), "--home") {
		t.Errorf("a directory with other files: %v", err)
	}
	h, st := newHome(t)
	if again, err := h.State(); err != nil || again.ID != st.ID {
		t.Errorf("read again: %+v %v", again, err)
	}
	if _, err := (Home{filepath.Join(dir, "none")}).State(); !errors.Is(err, ErrNoRegion) {
		t.Errorf("no home: %v", err)
	}
	for _, name := range []string{"", "Upper", "with space", "-x", strings.Repeat("a", 64)} {
		if _, err := (Home{filepath.Join(dir, "x")}).create(name, ""); err == nil {
			t.Errorf("region %q was made", name)
		}
	}
}

func TestAHomeOfANewerProgramIsRefused(t *testing.T) {
	h, st := newHome(t)
	st.Format = stateFormat + 1
	if err := writeJSON(h.Path("region.json"), st); err != nil {
		t.Fatal(err)
	}
	if _, err := h.State(); err == nil || !strings.Contains(err.Error(), "newer") {
		t.Errorf("a newer format: %v", err)
	}
	if err := os.WriteFile(h.Path("region.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := h.State(); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged one: %v", err)
	}
}

func TestUpAddsClustersAndNeverRemovesAny(t *testing.T) {
	h, err := OpenHome(filepath.Join(t.TempDir(), "home"))
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		opts UpOptions
		want []string
		err  string
	}{
		{UpOptions{Region: "r1"}, []string{"management-01"}, ""},
		{UpOptions{}, []string{"management-01"}, ""},
		{UpOptions{ManagementClusters: 3}, []string{"management-01", "management-02", "management-03"}, ""},
		{UpOptions{ManagementClusters: 2}, nil, "mc delete"},
		{UpOptions{Region: "r2"}, nil, "--home"},
		{UpOptions{Region: "r1"}, []string{"management-01", "management-02", "management-03"}, ""},
	} {
		st, _, err := h.prepareState(step.opts)
		if step.err != "" {
			if err == nil || !strings.Contains(err.Error(), step.err) {
				t.Errorf("%+v: %v, want an error with %q", step.opts, err, step.err)
			}
			continue
		}
		if err != nil || fmt.Sprint(st.Clusters) != fmt.Sprint(step.want) {
			t.Errorf("%+v: %v %v, want %v", step.opts, st.Clusters, err, step.want)
		}
	}
	if err := h.RemoveCluster("management-02"); err != nil {
		t.Fatal(err)
	}
	// A name is never given twice: it is in certificates and topics.
	if st, _, err := h.prepareState(UpOptions{ManagementClusters: 3}); err != nil ||
		fmt.Sprint(st.Clusters) != "[management-01 management-03 management-04]" {
		t.Errorf("after a removal: %v %v", st.Clusters, err)
	}
}

// Plain listeners exist only after --insecure-listen, and the status shows them.
func TestPlainListenersAreReported(t *testing.T) {
	h, _ := newHome(t)
	shown := func() map[string]string {
		t.Helper()
		s, err := h.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.Insecure
	}
	maestro := func() string {
		t.Helper()
		st, err := h.State()
		if err != nil {
			t.Fatal(err)
		}
		t := newTopology(h, st, Binaries{Atoll: "atoll"})
		return strings.Join(append(t.maestro(replica{maestroName, 1}).Args, t.clm(replica{clmName, 1}).Args...), " ")
	}
	if _, _, err := h.prepareState(UpOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(shown()) != 0 || strings.Contains(maestro(), "--insecure-listen") {
		t.Errorf("%v without anybody's word: %s", shown(), maestro())
	}
	yes, no := true, false
	for _, step := range []struct {
		say  *bool
		want int
	}{{&yes, 3}, {nil, 3}, {&no, 0}} {
		if _, _, err := h.prepareState(UpOptions{Insecure: step.say}); err != nil {
			t.Fatal(err)
		}
		got := shown()
		if len(got) != step.want || strings.Contains(maestro(), "--insecure-listen rest=127.0.0.1:") != (step.want > 0) {
			t.Errorf("%v: %s", got, maestro())
		}
		for name, at := range got {
			if !strings.Contains(maestro(), strings.TrimPrefix(at, "http://")) {
				t.Errorf("%s is shown at %s: %s", name, at, maestro())
			}
		}
	}
}

// The home stores the URL of the trace collector, and the lifecycle manager and its adapters get
// it.
func TestTheTraceCollectorIsStoredAndReported(t *testing.T) {
	h, _ := newHome(t)
	clmEnvironment := func() string {
		t.Helper()
		st, err := h.State()
		if err != nil {
			t.Fatal(err)
		}
		topology := newTopology(h, st, Binaries{Atoll: "atoll"})
		clm := strings.Join(topology.clm(replica{clmName, 1}).Env, " ")
		adapter := strings.Join(topology.adapter(replica{adapterName, 1}).Env, " ")
		if !strings.HasPrefix(adapter, clm) {
			t.Errorf("clm has %q, the adapter %q", clm, adapter)
		}
		return clm
	}
	collector, none := "http://127.0.0.1:4318", ""
	for _, step := range []struct {
		url  *string
		want bool
	}{{nil, false}, {&collector, true}, {nil, true}, {&none, false}} {
		if _, _, err := h.prepareState(UpOptions{Traces: step.url}); err != nil {
			t.Fatal(err)
		}
		if got := clmEnvironment(); strings.Contains(got, collector) != step.want ||
			strings.Contains(got, "HYPERFLEET_TRACING_ENABLED=true") != step.want {
			t.Errorf("%q, want a collector: %v", got, step.want)
		}
	}
}

// A bundled adapter that the home's own entities do not require does not run: the lifecycle manager
// would not wait for the deletion of what the adapter creates (I9).
func TestI9BundledAdaptersRunWhereTheyAreRequired(t *testing.T) {
	h, st := newHome(t)
	run := func() string {
		args := newTopology(h, st, Binaries{Atoll: "atoll"}).adapter(replica{adapterName, 1}).Args
		i := slices.Index(args, "--bundled")
		if i < 0 {
			return ""
		}
		return args[i+1]
	}
	if got := run(); got != "placement,pull-secret,hosted-cluster,node-pool,credential" {
		t.Errorf("by default: %s", got)
	}
	for entities, want := range map[string]string{
		"entities: [{kind: Cluster, plural: clusters, required_adapters: [cl-maestro]}]":                "",
		"entities: [{kind: Cluster, plural: clusters, required_adapters: [placement, hosted-cluster]}]": "placement,hosted-cluster",
	} {
		if err := os.WriteFile(h.Path("entities.yaml"), []byte(entities), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := run(); got != want {
			t.Errorf("%s: %s", entities, got)
		}
	}
}

// Before any process starts, `up` names each required adapter that the region does not run, with
// its kind.
func TestUpNamesTheMissingAdapter(t *testing.T) {
	for _, c := range []struct{ name, entities, homeAdapters, fails, notes string }{
		{"the default entities", "", "", "", ""},
		{"one that is not there", "entities: [{kind: Database, plural: databases, required_adapters: [dns]}]", "",
			"kind Database requires the adapter dns, which is neither bundled", ""},
		{"one that was added", "entities: [{kind: Database, plural: databases, required_adapters: [dns]}]", "dns", "",
			""},
		{"one of two", "entities: [{kind: Cluster, plural: clusters, required_adapters: [placement, dns]}]", "", "",
			"kind Cluster requires the adapter dns"},
		{"none is required", "entities: [{kind: Note, plural: notes}]", "", "", ""},
	} {
		h, st := newHome(t)
		if c.entities != "" {
			if err := os.WriteFile(h.Path("entities.yaml"), []byte(c.entities), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if c.homeAdapters != "" {
			if err := os.MkdirAll(h.Path("adapters", "mine"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(h.Path("adapters", "mine", "config.yaml"),
				[]byte("adapter: {name: "+c.homeAdapters+"}"),
				0o600); err != nil {
				t.Fatal(err)
			}
		}
		top := newTopology(h, st, Binaries{Atoll: "atoll"})
		note, err := top.checkAdapters()
		if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) ||
			(note == "") != (c.notes == "") || !strings.Contains(note, c.notes) {
			t.Errorf("%s: note %q, error %v", c.name, note, err)
		}
		runs := slices.ContainsFunc(top.specs(), func(s Spec) bool { return s.Name == adapterName })
		if want := c.name != "none is required" && c.fails == ""; runs != want {
			t.Errorf("%s: the adapter process is started: %v", c.name, runs)
		}
	}
}

func TestPortsAreKeptAndNoTwoHomesShareOne(t *testing.T) {
	given := map[int]string{}
	for i := range 5 {
		h, st := newHome(t)
		names := []string{"a", "b", "c"}
		if err := h.assignPorts(st.Ports, names); err != nil {
			t.Fatal(err)
		}
		before := fmt.Sprint(st.Ports)
		if err := h.assignPorts(st.Ports, names); err != nil || fmt.Sprint(st.Ports) != before {
			t.Errorf("assigned again: %v, then %v (%v)", before, st.Ports, err)
		}
		for name, port := range st.Ports {
			if port < firstPort || port > lastPort {
				t.Errorf("port %d is out of range", port)
			}
			if other := given[port]; other != "" {
				t.Errorf("port %d is %s's and home %d's %s", port, other, i, name)
			}
			given[port] = fmt.Sprintf("home %d's %s", i, name)
		}
	}
}

func TestTheHolderOfAPortIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	if isPortFree(port, oneProcess) {
		t.Error("a port that is listened on is reported as free")
	}
	if holder := portHolder(port); !strings.Contains(holder, strconv.Itoa(os.Getpid())) {
		t.Errorf("the holder is %q, not this process %d", holder, os.Getpid())
	}
}
