package agent

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"
)

// TestFrequentChangesOfKindsBlockNoWork: a CustomResourceDefinition changes during each
// discovery. The work applies its other manifest, and discovery pauses.
func TestFrequentChangesOfKindsBlockNoWork(t *testing.T) {
	c := newCore(coreConfig{consumer: "c", hubHash: "h", agentID: "h", fieldManager: "work-agent", sendWindow: 4})
	now, applies, discoveries := noon, 0, 0
	var run func(effects []effect)
	run = func(effects []effect) {
		for _, e := range effects {
			switch e := e.(type) {
			case effPersist:
				if e.then != nil {
					run(c.step(e.then, now))
				}
			case effDiscover:
				if e.gvk.Kind == "ConfigMap" {
					run(c.step(evMapped{gvk: e.gvk, gvr: configMaps, namespaced: true}, now))
					break
				}
				if discoveries++; discoveries > 100 {
					t.Fatal("discovery runs without a pause")
				}
				run(c.step(evKindsChanged{}, now))
				run(c.step(evMapped{gvk: e.gvk, err: &opError{kind: errNoKind, message: "no such kind"}}, now))
				run(c.step(evKindsChanged{}, now))
			case effCreateAMW:
				run(c.step(evAMWDone{id: e.id, op: amwCreate, name: e.name, amw: &amwState{name: e.name, uid: "amw",
					finalizers: []string{amwFinalizer}}}, now))
			case effApply:
				applies++
			}
		}
	}
	data, err := json.Marshal(manifests(configMap("ns", "a", "k", "1"),
		json.RawMessage(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"x","namespace":"ns"}}`)))
	if err != nil {
		t.Fatal(err)
	}
	s, err := decodeSpec(spec{ID: "one", Generation: 1, Source: "maestro", Metadata: "{}", Received: now}, data)
	if err != nil {
		t.Fatal(err)
	}
	run(c.step(evAMWsSynced{}, now))
	run(c.step(evSpec{spec: s, ack: func() {}}, now))
	if applies != 1 || discoveries != 1 {
		t.Fatalf("%d applies, %d discoveries; want one of each", applies, discoveries)
	}
	now = noon.Add(kindsSettle - time.Millisecond)
	run(c.step(evKindsChanged{}, now))
	if discoveries != 1 {
		t.Errorf("%d discoveries before the pause ends", discoveries)
	}
	now = noon.Add(kindsSettle)
	run(c.step(evTick{}, now))
	if discoveries != 2 {
		t.Errorf("%d discoveries after the pause, want 2", discoveries)
	}
}

func TestFeedbackValues(t *testing.T) {
	var content map[string]any
	deployment := `{"status":{"replicas":3,"readyReplicas":2,"ok":true,"ratio":0.5,"conditions":[{"type":"A",` +
		`"status":"True"},{"type":"B","status":"False"}],"map":{"a":1}},"spec":{"nothing":null}}`
	if err := json.Unmarshal([]byte(deployment), &content); err != nil {
		t.Fatal(err)
	}
	content["status"].(map[string]any)["replicas"] = int64(3) // as the API's decoder gives it
	content["status"].(map[string]any)["readyReplicas"] = int64(2)
	gvk := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	paths := func(p ...workv1.JsonPath) []workv1.FeedbackRule {
		return []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: p}}
	}
	for _, c := range []struct {
		name  string
		rules []workv1.FeedbackRule
		want  string
		err   string
	}{
		{"well known", []workv1.FeedbackRule{{Type: workv1.WellKnownStatusType}},
			"ReadyReplicas Integer 2; Replicas Integer 3", ""},
		{"string", paths(workv1.JsonPath{Name: "b", Path: `.status.conditions[?(@.type=="B")].status`}),
			"b String False", ""},
		{"boolean", paths(workv1.JsonPath{Name: "ok", Path: ".status.ok"}), "ok Boolean true", ""},
		{"object", paths(workv1.JsonPath{Name: "m", Path: ".status.map"}), `m JsonRaw {"a":1}`, ""},
		{"list of results", paths(workv1.JsonPath{Name: "l", Path: ".status.conditions[*].type"}),
			`l JsonRaw ["A","B"]`, ""},
		{"number", paths(workv1.JsonPath{Name: "r", Path: ".status.ratio"}), "r JsonRaw 0.5", ""},
		{"missing and null", paths(workv1.JsonPath{Name: "x", Path: ".status.x.y"}, workv1.JsonPath{Name: "n",
			Path: ".spec.nothing"}), "", ""},
		{"too long", paths(workv1.JsonPath{Name: "all", Path: ".status.conditions"}), "",
			"the length of returned json raw string for name all is larger than the maximum length 40"},
		{"does not parse", paths(workv1.JsonPath{Name: "bad", Path: ".status["}, workv1.JsonPath{Name: "ok",
			Path: ".status.ok"}), "ok Boolean true", "failed to parse json path .status[ of bad"},
		{"another version", paths(workv1.JsonPath{Name: "v", Version: "v2", Path: ".status"}), "",
			"version set in the path v is not matched for the related resource"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := newRulesets(40).compiled(c.rules, nil).read(gvk, content)
			var values []string
			for _, v := range got.Values {
				values = append(values, v.Name+" "+string(v.Value.Type)+" "+feedbackOf(workv1.ManifestCondition{
					StatusFeedbacks: workv1.StatusFeedbackResult{Values: []workv1.FeedbackValue{v}}})[v.Name])
			}
			if diff := cmp.Diff(c.want, strings.Join(values, "; ")); diff != "" {
				t.Error(diff)
			}
			if (c.err == "") != (got.Err == "") || !strings.Contains(got.Err, c.err) {
				t.Errorf("error %q, want %q", got.Err, c.err)
			}
		})
	}
	unknown := newRulesets(40).compiled([]workv1.FeedbackRule{{Type: workv1.WellKnownStatusType}}, nil).read(
		schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, content)
	if want := "cannot find the wellknown statuses for resource with gvk /v1, Kind=Secret"; unknown.Err != want {
		t.Errorf("error %q, want %q", unknown.Err, want)
	}
	all := newRulesets(40)
	if all.compiled(nil, nil) != nil || all.compiled(paths(workv1.JsonPath{Name: "a", Path: ".a"}), nil) != all.compiled(
		paths(workv1.JsonPath{Name: "a", Path: ".a"}), nil) {
		t.Error("equal rules are compiled twice, or none are something")
	}
}

func TestManifestConfigsMatchByWildcardAndFieldByField(t *testing.T) {
	rules := []workv1.FeedbackRule{{Type: workv1.WellKnownStatusType}}
	options := []workv1.ManifestConfigOption{
		{ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "ns", Name: "other"},
			FeedbackRules: rules},
		{ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "n*", Name: "a*c"},
			UpdateStrategy: &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeReadOnly}},
		{ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "*", Name: "*"},
			FeedbackRules: rules, UpdateStrategy: &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeCreateOnly}},
	}
	got := matchConfig(identity{"", "configmaps", "ns", "abc"}, options)
	if got.UpdateStrategy.Type != workv1.UpdateStrategyTypeReadOnly || len(got.FeedbackRules) != 1 {
		t.Errorf("%+v", got)
	}
	if got := matchConfig(identity{"apps", "configmaps", "ns", "abc"}, options); got.UpdateStrategy != nil {
		t.Errorf("another group matches: %+v", got)
	}
	for pattern, want := range map[string]bool{"abc": true, "*": true, "a*": true, "*c": true, "a*b*c": true,
		"ab*bc": false, "b*": false, "": false, "a": false} {
		if matchesWildcard(pattern, "abc") != want {
			t.Errorf("%q matches abc: %v", pattern, !want)
		}
	}
}
