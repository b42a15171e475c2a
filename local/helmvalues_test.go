package local

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"atoll.dev/gitops"
)

func parseValues(t *testing.T, text string) gitops.Document {
	t.Helper()
	d, err := gitops.ParseDocument("values.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestValuesOfHelmThatHaveAMeaningHereAreApplied: processes get the values, and the others are named with a reason.
func TestValuesOfHelmThatHaveAMeaningHereAreApplied(t *testing.T) {
	d := gitops.Declaration{Environment: "e", Region: "r", Services: gitops.Services{Traces: "http://general",
		Replicas: map[string]int64{"clm": 1}},
		ManagementClusters: []gitops.DeclaredCluster{{Name: "mc01-r", Values: parseValues(t, `
logLevel: warn
agent: {logLevel: debug, persistence: {size: 2Gi}}
hosting: {idle: 30m, enabled: true, router: {resources: {limits: {memory: 512Mi}}}}
hypershift: {externalDns: {domain: example.com}}
`)}},
		Values: parseValues(t, `
logLevel: debug
traces: http://own
clm: {recoverLostAfter: 60m, replicas: 2, releases: [1.36.3],
  resources: {limits: {memory: 1Gi, cpu: 1500m}, requests: {cpu: 250m}}}
adapter: {baseDomain: hosted.example.com, replicas: 0}
platform: {placementShownTo: customers, extraArgs: [--x]}
database: {host: postgres.example.com}
`)}
	settings, err := settingsOf(d)
	if err != nil {
		t.Fatal(err)
	}
	h, st := newHome(t)
	st.Settings, st.Clusters = settings, names{"mc01-r"}
	if err := h.assignPorts(st.Ports, portNames(st)); err != nil {
		t.Fatal(err)
	}
	specs := map[string]Spec{}
	for _, s := range newTopology(h, st, ownPrograms).specs() {
		specs[s.Name] = s
	}
	for name, wants := range map[string][]string{
		"clm": {"--log-level debug", "GOMEMLIMIT=1073741824", "GOMAXPROCS=2", "OTEL_EXPORTER_OTLP_ENDPOINT=http://own",
			"--release 1.36.3", "--recover-lost-after 1h"},
		"clm-2":          {"--log-level debug", "GOMEMLIMIT=1073741824"},
		"adapter":        {"--log-level debug", "ATOLL_BASE_DOMAIN=hosted.example.com"},
		"platform":       {"--placement-shown-to customers"},
		"pki":            {"--log-level debug"},
		"mc01-r-agent":   {"--log-level debug"},
		"mc01-r-router":  {"--log-level warn", "GOMEMLIMIT=536870912"},
		"mc01-r-hosting": {"--log-level warn", "--idle 30m"},
	} {
		text := strings.Join(append(specs[name].Args, specs[name].Env...), " ")
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s has no %s: %s", name, want, text)
			}
		}
	}
	if env := specs["mc01-r-hosting"].Env; slices.ContainsFunc(env, func(v string) bool {
		return strings.HasPrefix(v, "GOMEMLIMIT")
	}) {
		t.Errorf("hosting gives its planes a limit: %v", env)
	}
	var shown []string
	for _, v := range UnappliedValues(d, ownPrograms) {
		shown = append(shown, v.What+" "+v.Declared+": "+v.Reason)
	}
	want := []string{
		`values.clm.resources.requests.cpu "250m": nothing is reserved for a process, and it has no disk of its own`,
		`values.database.host "postgres.example.com": the region runs its own PostgreSQL`,
		`values.platform.extraArgs ["--x"]: arguments name files and addresses of a pod`,
		`mc01-r values.agent.persistence.size "2Gi": the data is in the home of the region`,
		`mc01-r values.hypershift.externalDns.domain "example.com": no chart is installed`,
	}
	if !slices.Equal(shown, want) {
		t.Errorf("shown are\n%s\nwant\n%s", strings.Join(shown, "\n"), strings.Join(want, "\n"))
	}
}

// TestAClusterThatIsNotDeclaredAnyMoreKeepsItsSettings: the apply that refuses to remove it does not restart it either.
func TestAClusterThatIsNotDeclaredAnyMoreKeepsItsSettings(t *testing.T) {
	h := Home{Dir: filepath.Join(t.TempDir(), "home")}
	of := func(clusters ...gitops.DeclaredCluster) State {
		t.Helper()
		d := gitops.Declaration{Environment: "e", Region: "r", ManagementClusters: clusters}
		settings, err := settingsOf(d)
		if err != nil {
			t.Fatal(err)
		}
		st, _, err := h.prepareState(UpOptions{Region: "r", Environment: "e", Clusters: clusterNames(d),
			Settings: settings})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	first := gitops.DeclaredCluster{Name: "mc01-r", Values: parseValues(t, "logLevel: debug\n")}
	second := gitops.DeclaredCluster{Name: "mc02-r", Values: parseValues(t, "logLevel: warn\n")}
	before, after := of(first), of(second)
	specs := map[string]Spec{}
	for _, s := range newTopology(h, before, ownPrograms).specs() {
		specs[s.Name] = s
	}
	for _, s := range newTopology(h, after, ownPrograms).specs() {
		if was, has := specs[s.Name]; has && !was.hasSameInvocation(s) {
			t.Errorf("%s starts again: %v, before %v", s.Name, s.Args, was.Args)
		}
	}
	if level := after.Settings.Clusters["mc02-r"].Processes[hostingService].LogLevel; level != "warn" {
		t.Errorf("the declared cluster has the level %q", level)
	}
	after.Clusters = names{"mc02-r"} // it was removed
	if _, kept := (&Settings{}).withUndeclaredClusters(after).Clusters["mc01-r"]; kept {
		t.Error("the settings of a removed cluster stay")
	}
}

// TestAValueOfHelmThatCannotBeAppliedIsRefused: with file and line, all mistakes at once.
func TestAValueOfHelmThatCannotBeAppliedIsRefused(t *testing.T) {
	_, err := settingsOf(gitops.Declaration{Values: parseValues(t, `logLevel: loud
clm: {replicas: many,
  resources: {limits: {memory: -1, cpu: lots}}}
maestro: {resources: {limits: {memory: 9e30}}}
`), ManagementClusters: []gitops.DeclaredCluster{{Name: "mc01-r", Values: parseValues(t, "hosting: {idle: soon}\n")}}})
	for _, want := range []string{
		"values.yaml:1: the value of Helm logLevel is loud: it must be one of debug, info, warn, error",
		"values.yaml:2: the value of Helm clm.replicas is many: a value of the type int64 is needed",
		"values.yaml:3: the value of Helm clm.resources.limits.memory is -1: it is out of range",
		"values.yaml:3: the value of Helm clm.resources.limits.cpu is lots: ",
		"values.yaml:4: the value of Helm maestro.resources.limits.memory is 9e+30: it is out of range",
		"values.yaml:1: the value of Helm hosting.idle is soon: it must be a duration such as 10m",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestEachValueOfTheChartsIsKnown: no value of Atoll's own charts is taken for that of another chart. So a chart with a
// new service is noticed here.
func TestEachValueOfTheChartsIsKnown(t *testing.T) {
	charts := filepath.Join("..", "deploy", "charts")
	for _, name := range []string{"regional-cluster/atoll", "management-cluster/atoll", "agent"} {
		data, err := os.ReadFile(filepath.Join(charts, filepath.FromSlash(name), "values.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		d, err := gitops.ParseDocument(name, data)
		if err != nil {
			t.Fatal(err)
		}
		paths := d.Leaves()
		if len(paths) < 10 {
			t.Errorf("%s has %d values", name, len(paths))
		}
		for _, keys := range paths {
			if name == "agent" {
				keys = append([]string{"agent"}, keys...)
			}
			if reason := reasonOf(keys); reason == "no chart is installed" && keys[0] != "otherCharts" {
				t.Errorf("%s: %s is taken for a value of another chart", name, strings.Join(keys, "."))
			}
		}
	}
}

// A limit in milli-bytes, a mistake that is easily made, leaves a process room to work.
func TestALimitOfMemoryLeavesAProcessRoom(t *testing.T) {
	if got := (Spec{}).with(ProcessSettings{MemoryBytes: 1}).Env; !slices.Equal(got, []string{"GOMEMLIMIT=67108864"}) {
		t.Errorf("the environment is %q", got)
	}
}
