package rosa

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/internal/rest"
)

// contractWork is the example of the contract.
const contractWork = `{"cluster_id":"management-01","data":{"apiVersion":"work.open-cluster-management.io/v1","kind":"ManifestWork",
  "metadata":{"name":"maestro-payload-test-1"},
  "spec":{"workload":{"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"maestro-payload-test","namespace":"default"},"data":{"k":"v<&>"}}]},
          "deleteOption":{"propagationPolicy":"Foreground"},
          "manifestConfigs":[{"resourceIdentifier":{"group":"","resource":"configmaps","namespace":"default","name":"maestro-payload-test"},
            "feedbackRules":[{"type":"JSONPaths","jsonPaths":[{"name":"status","path":".metadata"}]}],
            "updateStrategy":{"type":"ServerSideApply"}}]}}}`

func TestWorkOfTheContractIsRead(t *testing.T) {
	b, err := parseWork([]byte(contractWork))
	if err != nil {
		t.Fatal(err)
	}
	if b.Consumer != "management-01" || b.Metadata.Name != "maestro-payload-test-1" {
		t.Errorf("consumer %q, name %q", b.Consumer, b.Metadata.Name)
	}
	want := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"maestro-payload-test","namespace":"default"},"data":{"k":"v<&>"}}`
	if diff := cmp.Diff(want, string(b.Spec.Manifests[0])); diff != "" {
		t.Errorf("the manifest changed on its way (-want +got):\n%s", diff)
	}
	if b.Spec.DeleteOption == nil || b.Spec.DeleteOption.PropagationPolicy != "Foreground" {
		t.Errorf("deleteOption = %+v", b.Spec.DeleteOption)
	}
	if len(b.Spec.ManifestConfigs) != 1 || b.Spec.ManifestConfigs[0].FeedbackRules[0].JsonPaths[0].Path != ".metadata" {
		t.Errorf("manifestConfigs = %+v", b.Spec.ManifestConfigs)
	}
}

// workWith returns the contract's example with parts replaced.
func workWith(t *testing.T, change func(req, data, metadata map[string]any)) string {
	t.Helper()
	var req map[string]any
	if err := json.Unmarshal([]byte(contractWork), &req); err != nil {
		t.Fatal(err)
	}
	data := req["data"].(map[string]any)
	change(req, data, data["metadata"].(map[string]any))
	out, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func manifests(data map[string]any, items ...any) {
	data["spec"].(map[string]any)["workload"].(map[string]any)["manifests"] = items
}

func TestBadWorkIsRefusedWithCodeAndAdvice(t *testing.T) {
	with := func(change func(req, data, metadata map[string]any)) string { return workWith(t, change) }
	for _, c := range []struct {
		name, body, code, reason string
	}{
		{"no body", ``, "invalid-request", "the request body is empty"},
		{"no JSON", "{\n  \"cluster_id\": nope}", "invalid-request", "at line 2 column 18"},
		{"two documents", `{} {}`, "invalid-request", "at line 1 column 4"},
		{"an array", `[]`, "invalid-request", "JSON array"},
		{"a NUL", strings.Replace(contractWork, "v<&>", `a\u0000b`, 1), "invalid-request", `\u0000 cannot be stored`},
		{"invalid UTF-8", strings.Replace(contractWork, "v<&>", "\xff", 1), "invalid-request", "invalid UTF-8"},
		{"cluster_id a number", with(func(r, _, _ map[string]any) { r["cluster_id"] = 7 }), "invalid-request",
			"cluster_id is a JSON number"},
		{"cluster_id no name", with(func(r, _, _ map[string]any) { r["cluster_id"] = "a/+/b" }), "invalid-request",
			"not the name of a management cluster"},
		{"no data", with(func(r, _, _ map[string]any) { delete(r, "data") }), "missing-data", "data is missing"},
		{"data null", with(func(r, _, _ map[string]any) { r["data"] = nil }), "missing-data", "data is missing"},
		{"data a string", with(func(r, _, _ map[string]any) { r["data"] = "x" }), "invalid-data", "not an object"},
		{"no kind", with(func(_, d, _ map[string]any) { delete(d, "kind") }), "invalid-manifestwork-type",
			"kind (missing)"},
		{"kind a number", with(func(_, d, _ map[string]any) { d["kind"] = 1 }), "invalid-manifestwork-type", "kind 1"},
		{"another kind", with(func(_, d, _ map[string]any) { d["kind"] = "ConfigMap" }), "invalid-manifestwork-type",
			`must be of apiVersion "work.open-cluster-management.io/v1"`},
		{"another version", with(func(_, d, _ map[string]any) {
			d["apiVersion"] = "work.open-cluster-management.io/v1alpha1"
		}), "invalid-manifestwork-type", "v1alpha1"},
		{"no name", with(func(_, _, m map[string]any) { delete(m, "name") }), "invalid-manifestwork",
			"data.metadata.name is missing"},
		{"generateName", with(func(_, _, m map[string]any) { delete(m, "name"); m["generateName"] = "a-" }),
			"invalid-manifestwork", "set data.metadata.name"},
		{"a bad name", with(func(_, _, m map[string]any) { m["name"] = "Not OK" }), "invalid-manifestwork", "RFC 1123"},
		{"metadata a list", with(func(_, d, _ map[string]any) { d["metadata"] = []any{} }), "invalid-manifestwork",
			"data.metadata is a JSON array"},
		{"much metadata", with(func(_, _, m map[string]any) {
			m["annotations"] = map[string]any{"a": strings.Repeat("x", maxMetadata)}
		}), "invalid-manifestwork", "remove annotations"},
		{"no spec", with(func(_, d, _ map[string]any) { delete(d, "spec") }), "invalid-manifestwork",
			"manifests is empty"},
		{"no manifests", with(func(_, d, _ map[string]any) { manifests(d) }), "invalid-manifestwork",
			"at least one manifest"},
		{"a manifest that is none", with(func(_, d, _ map[string]any) { manifests(d, map[string]any{}, "x") }),
			"invalid-manifestwork", "manifests[1] is not an object"},
		{"a null manifest", with(func(_, d, _ map[string]any) { manifests(d, nil) }), "invalid-manifestwork",
			"manifests[0] is not an object"},
		{"a masked secret", with(func(_, d, _ map[string]any) {
			manifests(d, map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "s"},
				"data": map[string]any{"k": mask}})
		}), "invalid-manifestwork", "send the real one"},
		{"feedback from a Secret", with(func(_, d, _ map[string]any) {
			d["spec"].(map[string]any)["manifestConfigs"] = []any{map[string]any{
				"resourceIdentifier": map[string]any{"resource": "secrets", "name": "*", "namespace": "*"},
				"feedbackRules": []any{map[string]any{"type": "JSONPaths", "jsonPaths": []any{
					map[string]any{"name": "k", "path": ".data"}}}},
			}}
		}), "invalid-manifestwork", "data.spec.manifestConfigs[0]: feedback and condition rules may not read Secrets"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseWork([]byte(c.body))
			e, ok := errors.AsType[*rest.Error](err)
			if !ok {
				t.Fatalf("got %v, want an *rest.Error", err)
			}
			if e.Status != http.StatusBadRequest || e.Code != c.code || !strings.Contains(e.Reason, c.reason) {
				t.Errorf("got %d %s: %s\nwant 400 %s: ...%s...", e.Status, e.Code, e.Reason, c.code, c.reason)
			}
		})
	}
}

func TestUnknownMembersAreTolerated(t *testing.T) {
	body := workWith(t, func(req, data, metadata map[string]any) {
		req["more"], data["status"], metadata["finalizers"] = 1, map[string]any{"conditions": []any{}}, []any{"x"}
	})
	if _, err := parseWork([]byte(body)); err != nil {
		t.Error(err)
	}
}

func TestNamesOfManagementClusters(t *testing.T) {
	for name, ok := range map[string]bool{
		"management-01": true, "m": true, "0": true, strings.Repeat("a", 63): true,
		"": false, "-a": false, "a-": false, "A": false, "a.b": false, "a_b": false, "system:maestro": false,
		"a\n": false, strings.Repeat("a", 64): false,
	} {
		_, err := parseRegistration(fmt.Appendf(nil, `{"name":%q}`, name))
		if (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
	_, err := parseRegistration([]byte(`{}`))
	if codeOf(err) != codeMissingName {
		t.Errorf("no name: %v", err)
	}
}

// FuzzParseWork looks for a body that panics, and for an accepted body that cannot be
// published.
func FuzzParseWork(f *testing.F) {
	f.Add([]byte(contractWork))
	f.Add(
		[]byte(
			`{"cluster_id":"m","data":{"apiVersion":"work.open-cluster-management.io/v1","kind":"ManifestWork","metadata":{"name":"a"},"spec":{"workload":{"manifests":[{"apiVersion":"v1","kind":"Secret","data":{"a":"***"}}]}}}}`))
	f.Add([]byte(`{"data":{"kind":null,"apiVersion":[1]}}`))
	f.Add([]byte(`{"data":"\ud800"}`))
	f.Add([]byte("\xef\xbb\xbf{}"))
	f.Fuzz(func(t *testing.T, body []byte) {
		b, err := parseWork(body)
		if err != nil {
			if e, ok := errors.AsType[*rest.Error](err); !ok || e.Status != http.StatusBadRequest || e.Code == "" ||
				e.Reason == "" {
				t.Fatalf("not an answer: %v", err)
			}
			return
		}
		if _, err := json.Marshal(b.Spec); err != nil {
			t.Fatalf("accepted, but cannot be sent: %v", err)
		}
		for _, m := range b.Spec.Manifests {
			if _, err := maskSecrets(m); err != nil {
				t.Fatalf("accepted, but cannot be shown: %v", err)
			}
		}
	})
}
