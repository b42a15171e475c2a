package agent

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
)

func rbacResource(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: resource}
}

// allow gives the service account of the test's namespace these rights there.
func (w *world) allow(t *testing.T, resources, verbs []any) {
	t.Helper()
	group := []any{"", "rbac.authorization.k8s.io"}
	w.create(t, rbacResource("roles"), w.ns, map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": map[string]any{"name": "executor"},
		"rules": []any{map[string]any{"apiGroups": group, "resources": resources, "verbs": verbs}},
	})
	w.create(t, rbacResource("rolebindings"), w.ns, map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": map[string]any{
			"name": "executor"},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "executor"},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": "executor", "namespace": w.ns}},
	})
}

func (w *world) withExecutor(b work.Bundle) work.Bundle {
	b.Executer = &workv1.ManifestWorkExecutor{Subject: workv1.ManifestWorkExecutorSubject{
		Type: workv1.ExecutorSubjectTypeServiceAccount, ServiceAccount: &workv1.ManifestWorkSubjectServiceAccount{
			Namespace: w.ns, Name: "executor"},
	}}
	return b
}

// An executor's work has exactly the executor's rights; the agent's own wider rights do not count.
func TestAnExecutorsRightsLimitItsWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.allow(t, []any{"configmaps", "roles"}, []any{"create", "update", "patch", "get", "delete"})
	role := func(name, verb string) json.RawMessage {
		return json.RawMessage(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"` +
			name + `","namespace":"` + w.ns + `"},
			"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["` + verb + `"]}]}`)
	}
	secret := json.RawMessage(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","namespace":"` + w.ns + `"}}`)
	w.server.apply("one", w.withExecutor(manifests(configMap(w.ns, "a", "k", "1"), secret, role("less", "get"),
		role("more", "list"))))
	w.server.awaitCondition("one", workv1.WorkApplied, metav1.ConditionFalse)
	for ordinal, want := range []string{
		"Apply manifest complete",
		"Failed to apply manifest: not allowed to apply the resource  secrets, " + w.ns + " a, will try again in 1m0s",
		"Apply manifest complete",
		"Failed to apply manifest: not allowed to apply the resource rbac.authorization.k8s.io roles, " + w.ns +
			" more, error: permission escalation, will try again in 1m0s",
	} {
		c := meta.FindStatusCondition(w.server.manifest("one", ordinal).Conditions, workv1.ManifestApplied)
		if c == nil || c.Message != want {
			t.Errorf("manifest %d: %+v, want %q", ordinal, c, want)
		}
	}
	if _, err := w.in(rbacResource("roles"), w.ns).Get(t.Context(), "more", metav1.GetOptions{}); err == nil {
		t.Error("the role that gives too much was made")
	}
	w.server.delete("one")
	w.server.awaitGone("one")
}

// A work that orphans its objects needs no right to delete them.
func TestAnOrphaningExecutorNeedsNoDeleteRight(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.allow(t, []any{"configmaps"}, []any{"create", "update", "patch", "get"})
	b := w.withExecutor(manifests(configMap(w.ns, "a", "k", "1")))
	w.server.apply("one", b)
	w.server.awaitCondition("one", workv1.WorkApplied, metav1.ConditionFalse)
	b.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	w.server.apply("one", b)
	w.server.awaitApplied("one")
}

// The agent checks rights again a minute after a denial and five minutes after an approval.
func TestAnExecutorsRightsAreCheckedAgain(t *testing.T) {
	c := newCore(coreConfig{consumer: "c", hubHash: "h", agentID: "h", fieldManager: "work-agent", sendWindow: 4})
	now := noon
	key := objectKey{configMaps, "ns", "a"}
	there := &observed{exists: true, uid: "u", rv: 3, fingerprint: "f"}
	denied, applies := false, []effApply{}
	var run func(effects []effect)
	run = func(effects []effect) {
		for _, e := range effects {
			switch e := e.(type) {
			case effPersist:
				if e.then != nil {
					run(c.step(e.then, now))
				}
			case effDiscover:
				run(c.step(evMapped{gvk: e.gvk, gvr: configMaps, namespaced: true}, now))
			case effCreateAMW:
				run(c.step(evAMWDone{id: e.id, op: amwCreate, name: e.name, amw: &amwState{name: e.name, uid: "amw",
					finalizers: []string{amwFinalizer}}}, now))
			case effApply:
				applies = append(applies, e)
				done := evApplied{id: e.id, ordinal: e.ordinal, key: e.key, hash: e.hash, onlyRead: e.onlyRead}
				if denied {
					done.err, done.obs = &opError{kind: errDenied, message: "denied"}, &observed{}
				} else if !e.onlyAuthorize {
					done.obs = there
				}
				run(c.step(done, now))
			}
		}
	}
	applied := func() bool {
		return meta.IsStatusConditionTrue(c.works["one"].status.Status.Conditions, workv1.WorkApplied)
	}
	b := manifests(configMap("ns", "a", "k", "1"))
	b.Executer = &workv1.ManifestWorkExecutor{Subject: workv1.ManifestWorkExecutorSubject{
		Type: workv1.ExecutorSubjectTypeServiceAccount}}
	data, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	s, err := decodeSpec(spec{ID: "one", Generation: 1, Source: "maestro", Metadata: "{}", Received: now}, data)
	if err != nil {
		t.Fatal(err)
	}
	denied = true
	run(c.step(evAMWsSynced{}, now))
	run(c.step(evSpec{spec: s, ack: func() {}}, now))
	if len(applies) != 1 || applied() {
		t.Fatalf("%d applies, applied %v; want one that is denied", len(applies), applied())
	}
	type outcome struct {
		calls     int // all applies and authorizations so far
		isApplied bool
	}
	step := func(d time.Duration, want outcome) {
		t.Helper()
		now = now.Add(d)
		run(c.step(evTick{}, now))
		if got := (outcome{len(applies), applied()}); got != want {
			t.Errorf("after %s: %+v, want %+v", d, got, want)
		}
	}
	denied = false
	step(deniedRetry-time.Second, outcome{calls: 1})
	step(time.Second, outcome{calls: 2, isApplied: true})
	if c.objects[key] == nil || applies[1].onlyAuthorize {
		t.Fatal("the agent did not apply the object")
	}
	step(allowedRecheck-time.Second, outcome{calls: 2, isApplied: true})
	step(time.Second, outcome{calls: 3, isApplied: true})
	if !applies[2].onlyAuthorize {
		t.Error("the agent wrote an unchanged object again")
	}
	denied = true
	step(allowedRecheck, outcome{calls: 4})
	denied = false
	step(deniedRetry, outcome{calls: 5, isApplied: true})
}

// The agent reports a manifest for which it lacks the right, and applies the others.
func TestAMissingRightOfTheAgentIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	outside := json.RawMessage(
		`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration",` +
			`"metadata":{"name":"outside"},"webhooks":[]}`)
	w.server.apply("one", manifests(outside, configMap(w.ns, "a", "k", "1")))
	w.server.awaitCondition("one", workv1.WorkApplied, metav1.ConditionFalse)
	c := meta.FindStatusCondition(w.server.manifest("one", 0).Conditions, workv1.ManifestApplied)
	if c == nil || c.Reason != workv1.AppliedManifestFailed || !strings.Contains(c.Message, "is forbidden") {
		t.Errorf("%+v", c)
	}
	if got := dataOf(w.get(t, configMaps, w.ns, "a"), "k"); got != "1" {
		t.Errorf("k is %q", got)
	}
	w.server.delete("one")
	w.server.awaitGone("one")
}

// An AppliedManifestWork equals OCM's field by field; the agent takes over one of another agent and
// ends its eviction.
func TestAppliedManifestWorksEqualThoseOfOCM(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secret := json.RawMessage(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"` + w.ns + `"}}`)
	deployment := json.RawMessage(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d","namespace":"` +
		w.ns + `"},"spec":{"replicas":0,
		"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)
	b := manifests(secret, deployment, configMap(w.ns, "b", "k", "1"), configMap(w.ns, "a", "k", "1"))
	w.server.apply("one", b)
	w.server.awaitApplied("one")
	listed := func(u *unstructured.Unstructured) bool { return len(appliedResourcesOf(u)) == 4 }
	w.awaitObject(t, appliedWorks, "", w.amw("one"), listed)
	amw := w.get(t, appliedWorks, "", w.amw("one"))
	hash := strings.TrimSuffix(w.amw("one"), "-one")
	spec, _, _ := unstructured.NestedStringMap(amw.Object, "spec")
	if want := map[string]string{"hubHash": hash, "agentID": hash, "manifestWorkName": "one"}; !maps.Equal(spec, want) {
		t.Errorf("spec %v, want %v", spec, want)
	}
	if want := map[string]string{originalSourceLabel: "maestro"}; !maps.Equal(amw.GetLabels(), want) ||
		!slices.Equal(amw.GetFinalizers(), []string{workv1.AppliedManifestWorkFinalizer}) {
		t.Errorf("labels %v, finalizers %v", amw.GetLabels(), amw.GetFinalizers())
	}
	entry := func(group, version, resource, name string, gvr schema.GroupVersionResource) map[string]any {
		m := map[string]any{"version": version, "resource": resource, "namespace": w.ns, "name": name,
			"uid": string(w.get(t, gvr, w.ns, name).GetUID())}
		m["group"] = group
		return m
	}
	secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	want := []any{
		entry("", "v1", "configmaps", "a", configMaps), entry("", "v1", "configmaps", "b", configMaps), entry("", "v1",
			"secrets", "s", secrets),
		entry("apps", "v1", "deployments", "d", deployments),
	}
	got, _, _ := unstructured.NestedSlice(amw.Object, "status", "appliedResources")
	if jsonText(t, got) != jsonText(t, want) {
		t.Errorf("appliedResources\n%s\nwant\n%s", jsonText(t, got), jsonText(t, want))
	}
	owner := w.get(t, configMaps, w.ns, "a").GetOwnerReferences()
	if jsonText(t, owner) != jsonText(t, []metav1.OwnerReference{{APIVersion: "work.open-cluster-management.io/v1",
		Kind: "AppliedManifestWork", Name: amw.GetName(), UID: amw.GetUID()}}) {
		t.Errorf("owners %s", jsonText(t, owner))
	}

	// Another agent held the work and marked it for eviction.
	for sub, patch := range map[string]string{"": `{"spec":{"agentID":"another"}}`,
		"status": `{"status":{"evictionStartTime":"2026-01-01T00:00:00Z"}}`} {
		subs := []string{sub}
		if sub == "" {
			subs = nil
		}
		if _, err := w.in(appliedWorks, "").Patch(t.Context(), w.amw("one"), types.MergePatchType, []byte(patch),
			metav1.PatchOptions{FieldManager: "work"}, subs...); err != nil {
			t.Fatal(err)
		}
	}
	w.awaitObject(t, appliedWorks, "", w.amw("one"), func(u *unstructured.Unstructured) bool {
		_, evicting, _ := unstructured.NestedString(u.Object, "status", "evictionStartTime")
		agent, _, _ := unstructured.NestedString(u.Object, "spec", "agentID")
		return !evicting && agent == hash && listed(u)
	})
	if u := w.get(t, configMaps, w.ns, "a"); jsonText(t, u.GetOwnerReferences()) != jsonText(t, owner) {
		t.Errorf("owners are now %v", u.GetOwnerReferences())
	}
	w.server.delete("one")
	w.server.awaitGone("one")
}

func jsonText(t *testing.T, v any) string {
	t.Helper()
	out, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
