package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"
)

func celRule(condition string, expressions ...string) workv1.ConditionRule {
	return workv1.ConditionRule{Condition: condition, Type: workv1.CelConditionExpressionsType,
		CelExpressions: expressions}
}

func TestConditionRules(t *testing.T) {
	job := schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"}
	pod := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	hosted := schema.GroupVersionKind{Group: "hypershift.openshift.io", Version: "v1beta1", Kind: "HostedCluster"}
	known := func(condition string) workv1.ConditionRule {
		return workv1.ConditionRule{Condition: condition, Type: workv1.WellKnownConditionsType}
	}
	with := func(r workv1.ConditionRule, message, expression string) workv1.ConditionRule {
		r.Message, r.MessageExpression = message, expression
		return r
	}
	failed := `{"status":{"conditions":[{"type":"Failed","status":"True"}]}}`
	huge := `{"list":[` + strings.Repeat("1,", 3000) + `1]}`
	for _, c := range []struct {
		name   string
		gvk    schema.GroupVersionKind
		rule   workv1.ConditionRule
		object string
		want   string
	}{
		{"job finished", job, known("Complete"), `{"status":{"conditions":[{"type":"Complete","status":"True"}]}}`,
			"Complete=True/ConditionRuleEvaluated/Job is finished"},
		{"job failed", job, known("Complete"), failed, "Complete=True/ConditionRuleEvaluated/Job is finished"},
		{"job without conditions", job, known("Complete"), `{"status":{}}`,
			"Complete=False/ConditionRuleEvaluated/Job is not finished"},
		{"message of one's own", job, with(known("Complete"), "done?", ""), failed,
			"Complete=True/ConditionRuleEvaluated/Job is finished"},
		{"message expression of one's own", job, with(known("Complete"), "", `"it is " + string(result)`), failed,
			"Complete=True/ConditionRuleEvaluated/it is true"},
		{"pod", pod, known("Complete"), `{"status":{"phase":"Running"}}`,
			"Complete=False/ConditionRuleEvaluated/Pod is in phase Running"},
		{"pod succeeded", pod, known("Complete"), `{"status":{"phase":"Succeeded"}}`,
			"Complete=True/ConditionRuleEvaluated/Pod is in phase Succeeded"},
		{"nothing known", pod, known("Progressing"), `{}`, ""},
		{"hosted cluster", hosted, known("Degraded"),
			`{"status":{"conditions":[{"type":"Degraded","status":"True","message":"etcd"}]}}`,
			"Degraded=True/ConditionRuleEvaluated/etcd"},
		{"hosted cluster, young", hosted, known("Progressing"), `{}`,
			"Progressing=False/ConditionRuleEvaluated/Manifest is not Progressing"},
		{"cel", pod, celRule("Ready", "object.a == 1", "object.b == 2"), `{"a":1,"b":2}`,
			"Ready=True/ConditionRuleEvaluated/Manifest is Ready"},
		{"cel, one is false", pod, celRule("Ready", "object.a == 1", "object.b == 2"), `{"a":1,"b":3}`,
			"Ready=False/ConditionRuleEvaluated/Manifest is not Ready"},
		{"the rest is not evaluated", pod, celRule("Ready", "object.a == 2", "object.absent", "wrong("), `{"a":1}`,
			"Ready=False/ConditionRuleEvaluated/Manifest is not Ready"},
		{"fixed message", pod, with(celRule("Ready", "true"), "fine", ""), `{}`,
			"Ready=True/ConditionRuleEvaluated/fine"},
		{"empty message expression", pod, with(celRule("Ready", "true"), "fine", "''"), `{}`,
			"Ready=True/ConditionRuleEvaluated/fine"},
		{"message expression fails", pod, with(celRule("Ready", "true"), "fine", "object.x"), `{}`,
			"Ready=True/ConditionRuleEvaluated/no such key: x"},
		{"message expression is wrong", pod, with(celRule("Ready", "true"), "fine", "absent"), `{}`,
			"Ready=True/ConditionRuleEvaluated/ERROR: <input>:1:1: undeclared reference to 'absent' (in container '')"},
		{"no bool", pod, celRule("Ready", "object.a"), `{"a":"x"}`,
			"Ready=False/ConditionRuleExpressionError/expected bool result, got string"},
		{"missing field", pod, celRule("Ready", "object.a.b"), `{}`,
			"Ready=False/ConditionRuleExpressionError/no such key: a"},
		{"does not compile", pod, celRule("Ready", "absent"), `{}`,
			"Ready=False/ConditionRuleExpressionError/ERROR: <input>:1:1: undeclared reference to 'absent' (in " +
				"container '')\n | absent\n | ^"},
		{"too expensive", pod, celRule("Ready", "object.list.all(a, object.list.all(b, true))"), huge,
			"Ready=False/ConditionRuleExpressionError/operation cancelled: actual cost limit exceeded"},
		{"unknown type", pod, workv1.ConditionRule{Condition: "Ready", Type: "Magic"}, `{}`,
			"Ready=Unknown/ConditionRuleInvalid/unrecognized condition rule type Magic"},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := newRulesets(1).compiled(nil, []workv1.ConditionRule{c.rule}).read(
				c.gvk, document(t, c.object)).Conditions
			var lines []string
			for _, r := range found {
				lines = append(lines, fmt.Sprintf("%s=%s/%s/%s", r.Type, r.Status, r.Reason, r.Message))
			}
			if diff := cmp.Diff(c.want, strings.Join(lines, "\n")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func document(t *testing.T, text string) map[string]any {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// All rules of a manifest share one budget: a hundred that are each within
// their own limit may not keep the agent from its work.
func TestRulesOfOneManifestShareABudget(t *testing.T) {
	var list []workv1.ConditionRule
	for i := range 100 {
		list = append(list, celRule(fmt.Sprint("C", i), "object.list.all(a, object.list.all(b, true))"))
	}
	rs := newRulesets(1).compiled(nil, list)
	found := rs.read(schema.GroupVersionKind{}, document(t, `{"list":[`+strings.Repeat("1,", 100)+`1]}`)).Conditions
	evaluated := slices.IndexFunc(found, func(c ruleCondition) bool { return c.Message == errBudget.Error() })
	if each := 101 * 101; evaluated*each > conditionBudget { // at least 1 for each pair of the list
		t.Errorf("%d rules were evaluated, which cost at least %d", evaluated, evaluated*each)
	}
	if first, last := found[0], found[99]; first.Status != "True" || last.Message != errBudget.Error() ||
		last.Reason != workv1.ConditionRuleExpressionError {
		t.Errorf("first %+v, last %+v", first, last)
	}
}

func TestRuleConditionsAreAggregated(t *testing.T) {
	m := func(conditions ...string) workv1.ManifestCondition {
		mc := workv1.ManifestCondition{}
		for i := 0; i < len(conditions); i += 3 {
			mc.Conditions = append(mc.Conditions, metav1.Condition{
				Type: conditions[i], Status: metav1.ConditionStatus(conditions[i+1]), Message: conditions[i+
					2], Reason: workv1.ConditionRuleEvaluated,
			})
		}
		return mc
	}
	for _, c := range []struct {
		name      string
		manifests []workv1.ManifestCondition
		want      string
	}{
		{"one", []workv1.ManifestCondition{m("Complete", "True", "done"), {}},
			"Complete=True/ConditionRulesAggregated/done"},
		{"one without message", []workv1.ManifestCondition{m("Complete", "True", "")},
			"Complete=True/ConditionRulesAggregated/Aggregated from 1 manifest conditions"},
		{"false wins", []workv1.ManifestCondition{m("Complete", "True", "a"), m("Complete", "False", "b"),
			m("Complete", "Unknown", "c")},
			"Complete=False/ConditionRulesAggregated/Aggregated from 3 manifest conditions"},
		{"unknown wins over true", []workv1.ManifestCondition{m("Degraded", "True", "a"), m("Degraded", "Unknown",
			"b")},
			"Degraded=Unknown/ConditionRulesAggregated/Aggregated from 2 manifest conditions"},
		{"progressing: true wins", []workv1.ManifestCondition{m("Progressing", "True", "a"), m("Progressing", "False",
			"b"), m("Progressing", "Unknown", "b")},
			"Progressing=True/ConditionRulesAggregated/Aggregated from 3 manifest conditions"},
		{"progressing: unknown wins over false", []workv1.ManifestCondition{m("Progressing", "Unknown", "a"),
			m("Progressing", "False", "b")},
			"Progressing=Unknown/ConditionRulesAggregated/Aggregated from 2 manifest conditions"},
		{"progressing: nothing does", []workv1.ManifestCondition{m("Progressing", "False", "a")},
			"Progressing=False/ConditionRulesAggregated/a"},
		{"by type", []workv1.ManifestCondition{m("Z", "True", "z", "A", "False", "a")},
			"A=False/ConditionRulesAggregated/a\nZ=True/ConditionRulesAggregated/z"},
		{"not of rules", []workv1.ManifestCondition{
			{Conditions: []metav1.Condition{{Type: "Complete", Status: "True", Reason: "Mine"}}}}, ""},
	} {
		if diff := cmp.Diff(c.want, conditionText(aggregateRuleConditions(c.manifests, 7))); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

func TestConditionsOfRemovedRulesDisappear(t *testing.T) {
	view := manifestView{
		meta: workv1.ManifestResourceMeta{Kind: "Pod", Resource: "pods", Name: "n"}, mapped: true, live: &observed{
			exists: true},
		found: feedback{Conditions: []ruleCondition{{"Ready", "True", workv1.ConditionRuleEvaluated, "m"},
			{"Old", "True", workv1.ConditionRuleEvaluated, "m"}}},
	}
	before := manifestStatus(view, nil, 1, noon)
	view.found.Conditions = view.found.Conditions[:1]
	after := manifestStatus(view, &before, 2, noon.Add(time.Hour))
	want := "Applied=True/AppliedManifestComplete/Apply manifest complete\nAvailable=True/ResourceAvailable/Resource " +
		"is available\n" +
		"Ready=True/ConditionRuleEvaluated/m\nStatusFeedbackSynced=True/NoStatusFeedbackSynced/"
	if diff := cmp.Diff(want, conditionText(sortedConditions(after.Conditions))); diff != "" {
		t.Error(diff)
	}
	// While the object cannot be read, the last values stay.
	view.live = nil
	if gone := manifestStatus(view, &after, 3, noon); len(gone.Conditions) != 4 {
		t.Errorf("%s", conditionText(gone.Conditions))
	}
}

func sortedConditions(conditions []metav1.Condition) []metav1.Condition {
	slices.SortFunc(conditions, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	return conditions
}

func TestWellKnownStatusOfHyperShiftKinds(t *testing.T) {
	rs := newRulesets(1<<10).compiled([]workv1.FeedbackRule{{Type: workv1.WellKnownStatusType}}, nil)
	read := func(kind, object string) string {
		t.Helper()
		f := rs.read(schema.GroupVersionKind{Group: "hypershift.openshift.io", Version: "v1beta1", Kind: kind},
			document(t, object))
		if f.Err != "" {
			t.Errorf("%s: %s", kind, f.Err)
		}
		var got []string
		for _, v := range f.Values {
			got = append(got, v.Name+"="+feedbackOf(workv1.ManifestCondition{
				StatusFeedbacks: workv1.StatusFeedbackResult{Values: []workv1.FeedbackValue{v}}})[v.Name])
		}
		return strings.Join(got, "\n")
	}
	for _, c := range []struct{ kind, object, want string }{
		{"HostedCluster", `{}`, ""},
		{"HostedCluster", `{"status":{"version":{"history":[],"desired":{}},"conditions":[]}}`, ""},
		{"HostedCluster", `{"status":{
			"conditions":[{"type":"Available","status":"True","reason":"AsExpected","message":"up"},{"type":"Progressing","status":"False"},{"type":"Degraded","status":"False","message":""}],
			"version":{"desired":{"version":"4.19.3","image":"i"},"history":[{"version":"4.19.3","state":"Partial"},{"version":"4.19.2","state":"Completed"}]},
			"controlPlaneEndpoint":{"host":"api.example","port":"x"},"kubeconfig":{"name":"hc-admin-kubeconfig"},"kubeadminPassword":{"name":"hc-kubeadmin"}}}`,
			"Available=True\nAvailableReason=AsExpected\nAvailableMessage=up\nProgressing=False\nDegraded=False\nDegradedMessage=\nVersion=4.19.3\nVersionState=Partial\n" +
				"DesiredVersion=4.19.3\nEndpointHost=api.example\nEndpointPort=x\nKubeconfigSecret=hc-admin-kubeconfig\nKubeadminPasswordSecret=hc-kubeadmin"},
		{"NodePool",
			`{"spec":{},"status":{"replicas":"n","version":"4.19.3","conditions":[{"type":"Ready","status":"True"},` +
				`{"type":"UpdatingVersion","status":"False"}]}}`,
			"Ready=True\nUpdatingVersion=False\nReplicas=n\nVersion=4.19.3"},
	} {
		if diff := cmp.Diff(c.want, read(c.kind, c.object)); diff != "" {
			t.Errorf("%s: %s", c.kind, diff)
		}
	}
}
