package agent

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
)

func TestFeedback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deployment := raw(map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "d", "namespace": w.ns},
		"spec": map[string]any{
			"replicas": 2, "selector": map[string]any{"matchLabels": map[string]any{"a": "b"}},
			"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "b"}},
				"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}}},
		},
	})
	b := manifests(deployment, configMap(w.ns, "a", "k", "1"))
	b.ManifestConfigs = []workv1.ManifestConfigOption{
		{
			ResourceIdentifier: workv1.ResourceIdentifier{Group: "apps", Resource: "deployments", Namespace: w.ns,
				Name: "d"},
			FeedbackRules: []workv1.FeedbackRule{{Type: workv1.WellKnownStatusType}, {Type: workv1.JSONPathsType,
				JsonPaths: []workv1.JsonPath{
					{Name: "spec", Path: ".spec.selector"}, {Name: "generation", Path: ".metadata.generation"},
					{Name: "none", Path: ".nothing"},
				}}},
		},
		{
			ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "*", Name: "*"},
			FeedbackRules: []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{
				{Name: "k", Path: ".data.k"}}}},
		},
	}
	w.server.apply("one", b)
	w.server.await("the controllers' word about the Deployment", func() bool {
		if !w.server.has("one", workv1.WorkApplied, metav1.ConditionTrue) {
			return false
		}
		return feedbackOf(w.server.bundles["one"].status.ResourceStatus[0])["Replicas"] == "2"
	})
	got := feedbackOf(w.server.manifest("one", 0))
	if got["spec"] != `{"matchLabels":{"a":"b"}}` || got["generation"] != "1" || got["none"] != "" {
		t.Errorf("feedback %v", got)
	}
	if got := feedbackOf(w.server.manifest("one", 1)); got["k"] != "1" {
		t.Errorf("feedback %v", got)
	}
	if !meta.IsStatusConditionTrue(w.server.manifest("one", 0).Conditions, conditionFeedback) {
		t.Error("the feedback is not synced")
	}
	// The rules change, the manifests do not.
	b.ManifestConfigs[1].FeedbackRules[0].JsonPaths[0] = workv1.JsonPath{Name: "all", Path: ".data"}
	w.server.apply("one", b)
	w.server.await("feedback by the new rules", func() bool {
		return w.server.has("one", workv1.WorkApplied, metav1.ConditionTrue) &&
			feedbackOf(w.server.bundles["one"].status.ResourceStatus[1])["all"] == `{"k":"1"}`
	})
	w.server.delete("one")
	w.server.awaitGone("one")
	w.awaitGone(t, deployments, w.ns, "d")
}

// TestI11RulesForSecretsReadNothing: a work with a Secret that it only reads, and with rules
// for it. Its status must have no value of the Secret, and must say why.
func TestI11RulesForSecretsReadNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	object := map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "s",
		"namespace": w.ns}}
	b := manifests(raw(object))
	object["stringData"] = map[string]any{"k": "hidden-value"}
	w.create(t, secrets, w.ns, object)
	b.ManifestConfigs = []workv1.ManifestConfigOption{{
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: "secrets", Namespace: "*", Name: "*"},
		UpdateStrategy:     &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeReadOnly},
		FeedbackRules: []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{
			{Name: "all", Path: ".data"}}}},
		ConditionRules: []workv1.ConditionRule{{Condition: "Mine", Type: workv1.CelConditionExpressionsType,
			CelExpressions: []string{"true"}, MessageExpression: "string(object.data.k)"}},
	}}
	w.server.apply("one", b)
	w.server.awaitCondition("one", workv1.WorkAvailable, metav1.ConditionTrue)
	got := w.server.manifest("one", 0)
	if len(got.StatusFeedbacks.Values) != 0 {
		t.Errorf("feedback values %v", got.StatusFeedbacks.Values)
	}
	for _, kind := range []string{conditionFeedback, "Mine"} {
		c := meta.FindStatusCondition(got.Conditions, kind)
		if c == nil || c.Status == metav1.ConditionTrue || !strings.Contains(c.Message, work.SecretRulesRefused) {
			t.Errorf("condition %s is %+v", kind, c)
		}
	}
	w.server.delete("one")
	w.server.awaitGone("one")
}

// TestI11RulesReadNoSecretsInsideObjects: an object with Secrets inside, as a work in a hub's cluster, is no Secret
// itself.
func TestI11RulesReadNoSecretsInsideObjects(t *testing.T) {
	var object map[string]any
	if err := json.Unmarshal([]byte(`{"apiVersion":"example.com/v1","kind":"Package",
		"status":{"phase":"Ready"},"spec":{"manifests":[
		{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"data":{"k":"hidden-value"}},
		{"apiVersion":"v1","kind":"SecretList","items":[{"stringData":{"k":"hidden-value"}}]},
		{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Secret","data":{"k":"hidden-value"}}]}]}}`),
		&object); err != nil {
		t.Fatal(err)
	}
	before := fmt.Sprint(object)
	var paths []workv1.JsonPath
	for i, path := range []string{".spec", ".spec.manifests[0].data.k", "..stringData",
		".spec.manifests[2].items[*].data", ".spec.manifests[0].metadata.name", ".status.phase"} {
		paths = append(paths, workv1.JsonPath{Name: fmt.Sprintf("path%d", i), Path: path})
	}
	rules := newRulesets(1<<16).compiled([]workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: paths}},
		[]workv1.ConditionRule{{Condition: "Mine", Type: workv1.CelConditionExpressionsType,
			CelExpressions: []string{"true"}, MessageExpression: "string(object.spec.manifests[0].data.k)"}})
	got := rules.read(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Package"}, object)
	shown, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(shown), "hidden-value") || strings.Count(got.Err, work.SecretRulesRefused) != 4 {
		t.Errorf("got %s", shown)
	}
	values := feedbackOf(workv1.ManifestCondition{StatusFeedbacks: workv1.StatusFeedbackResult{Values: got.Values}})
	if len(values) != 2 || values["path4"] != "s" || values["path5"] != "Ready" {
		t.Errorf("feedback values %v", values)
	}
	if fmt.Sprint(object) != before {
		t.Error("the object of the watch was changed")
	}
}

func feedbackOf(m workv1.ManifestCondition) map[string]string {
	values := map[string]string{}
	for _, v := range m.StatusFeedbacks.Values {
		switch v.Value.Type {
		case workv1.Integer:
			values[v.Name] = fmt.Sprint(*v.Value.Integer)
		case workv1.String:
			values[v.Name] = *v.Value.String
		case workv1.Boolean:
			values[v.Name] = fmt.Sprint(*v.Value.Boolean)
		case workv1.JsonRaw:
			values[v.Name] = *v.Value.JsonRaw
		}
	}
	return values
}
