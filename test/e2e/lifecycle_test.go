package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/clm"
	"atoll.dev/internal/tracetest"
	"atoll.dev/test/localtest"
)

// callCLM calls the region's lifecycle manager at its plain port.
func callCLM(r *localtest.Region, method, path, body string) (status int, answer map[string]any, err error) {
	req, err := http.NewRequestWithContext(r.T.Context(), method, r.Status().Insecure["clm"]+path, strings.NewReader(
		body))
	if err != nil {
		return 0, nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err == nil {
		err = json.Unmarshal(data, &answer)
	}
	return res.StatusCode, answer, err
}

func reconciledCondition(cluster map[string]any) string {
	status, _ := cluster["status"].(map[string]any)
	conditions, _ := status["conditions"].([]any)
	for _, c := range conditions {
		if c := c.(map[string]any); c["type"] == "Reconciled" {
			return fmt.Sprintf("%v@%v %v", c["status"], c["observed_generation"], c["message"])
		}
	}
	return "no condition"
}

// ownAdapter prepares a home whose clusters need only the adapter cl-maestro, the example.
func ownAdapter(t *testing.T) func(home string) {
	return func(home string) {
		entities := strings.Replace(string(clm.DefaultEntities), "[placement, pull-secret, hosted-cluster]",
			"[cl-maestro]", 1)
		write(t, filepath.Join(home, "entities.yaml"), []byte(entities))
		if err := os.CopyFS(filepath.Join(home, "adapters", "cl-maestro"),
			os.DirFS("../../adapters/cl-maestro")); err != nil {
			t.Fatal(err)
		}
	}
}

// A requested cluster is created on a management cluster by the sentinel, an operator's own
// adapter, Maestro and the agent, and reports so; its deletion removes everything. One trace covers
// it all.
func TestAClusterIsReconciledAndDeleted(t *testing.T) {
	t.Parallel()
	collector := tracetest.Start(t)
	r := localtest.NewIn(t, ownAdapter(t), "--insecure-listen", "--traces", collector.URL)
	const clusters = "/api/hyperfleet/v1/clusters"
	status, made, err := callCLM(r, "POST", clusters, `{"kind":"Cluster","name":"first","spec":{}}`)
	if err != nil || status != 201 {
		t.Fatalf("create: %d %v %v", status, made, err)
	}
	path := made["href"].(string)
	namespace := "clusters-" + made["id"].(string)
	await := func(generation string) {
		t.Helper()
		localtest.Eventually(t, 3*time.Minute, func() error {
			status, c, err := callCLM(r, "GET", path, "")
			if err != nil || status != 200 || !strings.HasPrefix(reconciledCondition(c), "True@"+generation+" ") {
				return fmt.Errorf("%d %v: %s", status, err, reconciledCondition(c))
			}
			return nil
		})
	}
	await("1")
	r.Kubectl("management-01", "get", "namespace", namespace)

	// From the POST to the final report: one run of the adapter applied the work, another observed
	// its status.
	runs := func(spans []tracetest.Span) (traces []string) {
		for _, s := range spans {
			if s.Name == "reconcile Cluster" && s.Attrs["resource.id"] == made["id"] {
				traces = append(traces, s.Trace)
			}
		}
		return traces
	}
	spans := collector.Await(t, "the POST, two runs of the adapter, and a report", func(spans []tracetest.Span) bool {
		return len(traceOf(spans, made["id"].(string))) > 0 && len(runs(spans)) > 1
	})
	if traces := runs(spans); len(slices.Compact(slices.Clone(traces))) != 1 {
		t.Errorf("the adapter's runs are in several traces: %v", traces)
	}
	one := traceOf(spans, made["id"].(string))
	for _, want := range []string{"hyperfleet-api POST /api/hyperfleet/v1/clusters", "hyperfleet-api publish Cluster",
		"hyperfleet-api PUT /api/hyperfleet/v1/clusters/{id}/statuses"} {
		if !slices.Contains(one, want) {
			t.Errorf("the trace has no %s: %v", want, one)
		}
	}
	if !slices.ContainsFunc(one, func(s string) bool { return strings.HasPrefix(s, "atoll-adapter ") }) {
		t.Errorf("the trace has nothing of the adapter: %v", one)
	}

	if status, answer, err := callCLM(r, "PATCH", path, `{"labels":{"a":"b"}}`); err != nil || status != 200 {
		t.Fatalf("patch: %d %v %v", status, answer, err)
	}
	await("2")
	if status, answer, err := callCLM(r, "DELETE", path, ""); err != nil || status != 202 {
		t.Fatalf("delete: %d %v %v", status, answer, err)
	}
	localtest.Eventually(t, 3*time.Minute, func() error {
		if status, c, err := callCLM(r, "GET", path, ""); err != nil || status != 404 {
			return fmt.Errorf("%d %v %v", status, c, err)
		}
		return nil
	})
	if out, err := r.TryKubectl("management-01", "get", "namespace", namespace, "-o",
		"jsonpath={.status.phase}"); err == nil && out != "Terminating" {
		t.Errorf("the namespace is still there: %s", out)
	}
}

// traceOf returns the spans, as "service name", of the trace that created a cluster, once a report
// of the same trace exists.
func traceOf(spans []tracetest.Span, id string) (names []string) {
	trace := ""
	for _, s := range spans {
		if s.Attrs["resource.id"] == id && trace == "" {
			trace = s.Trace
		}
	}
	reported := false
	for _, s := range spans {
		if s.Trace == trace && trace != "" {
			names = append(names, s.Service+" "+s.Name)
			reported = reported || strings.HasPrefix(s.Name, "PUT /api/hyperfleet")
		}
	}
	if !reported {
		return nil
	}
	return names
}

// A management cluster is known to the lifecycle manager as long as it is
// registered.
func TestManagementClustersAreRegisteredWithTheLifecycleManager(t *testing.T) {
	r := localtest.Shared(t)
	names := func() string {
		t.Helper()
		return r.Atoll("clm", "list", "managementclusters")
	}
	if got := names(); !strings.Contains(got, "management-01") {
		t.Fatalf("the region's own is not there: %s", got)
	}
	r.Atoll("mc", "register", "edge-clm")
	if got := names(); !strings.Contains(got, "edge-clm") {
		t.Errorf("not there after it was registered: %s", got)
	}
	takes := platform.ManagementClusterUpdate{State: platform.ManagementClusterUpdateStateCordoned,
		Capacity: platform.Capacity{"planes": 3, "gpu": 1}}
	if _, err := r.API().UpdateManagementCluster(t.Context(), "edge-clm", takes); err != nil {
		t.Error(err)
	}
	takes = platform.ManagementClusterUpdate{Capacity: platform.Capacity{"planes": 4}, Versions: platform.PlaneVersions{
		"1.36.3"}}
	if _, err := r.API().UpdateManagementCluster(t.Context(), "edge-clm", takes); err != nil {
		t.Error(err)
	}
	var list []struct {
		Name string
		Spec json.RawMessage
	}
	if err := json.Unmarshal([]byte(r.Atoll("clm", "list", "managementclusters", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	for _, mc := range list {
		const want = `{"state":"Cordoned","capacity":{"planes":4},"versions":["1.36.3"]}`
		switch {
		case mc.Name == "edge-clm" && !sameJSON(mc.Spec, want):
			t.Errorf("takes %s, want %s", mc.Spec, want)
		case mc.Name == "management-01" && !strings.Contains(string(mc.Spec), `"planes"`):
			t.Errorf("the region's own takes %s", mc.Spec)
		}
	}
	if got := r.Atoll("mc", "uncordon", "edge-clm"); !strings.Contains(got, "edge-clm is Unheard") {
		t.Errorf("uncordoned, without an agent: %s", got)
	}
	if got := strings.Join(strings.Fields(r.Atoll("mc", "get", "edge-clm")), " "); !strings.Contains(
		got, "State Unheard Last seen never") || !strings.Contains(got, "Reserved planes 0/4") {
		t.Errorf("mc get: %s", got)
	}
	r.Atoll("mc", "delete", "edge-clm")
	if got := names(); strings.Contains(got, "edge-clm") {
		t.Errorf("there after it was deleted: %s", got)
	}
}

func sameJSON(a []byte, b string) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal([]byte(b), &y) == nil && reflect.DeepEqual(x, y)
}

// A cluster without a usable management cluster waits and reports why, and continues by itself when
// one is usable.
func TestAClusterWaitsForAManagementCluster(t *testing.T) {
	r := localtest.Shared(t)
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	write(t, file,
		[]byte(
			`{kind: Cluster, name: patient, spec: {placement: {selector: {tier: gold}}, `+
				`hostedCluster: {release: {image: "atoll.dev/release:1.36.3"}}}}`))
	r.Atoll("clm", "create", "-f", file)
	wantAnswer := func(want string) {
		t.Helper()
		localtest.Eventually(t, 3*time.Minute, func() error {
			if got := r.Atoll("clm", "why", "patient"); !strings.Contains(got, want) {
				return fmt.Errorf("atoll clm why answers\n%s", got)
			}
			return nil
		})
	}
	wantAnswer("management-01: it has no label tier")
	r.Atoll("clm", "patch", "managementclusters", "management-01", "-p", `{"labels":{"tier":"gold"}}`)
	wantAnswer("Placed: on management cluster management-01")
	if out, err := r.Try("mc", "delete", "management-01"); err == nil || !strings.Contains(err.Error(), "hosts") {
		t.Errorf("a management cluster with clusters is deleted: %s, %v", out, err)
	}
	r.Atoll("clm", "patch", "managementclusters", "management-01", "-p", `{"labels":{"tier":null}}`)
	r.Atoll("clm", "delete", "clusters", "patient") // its end is awaited by other tests
}
