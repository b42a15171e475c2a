package rosa

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/api/work"
)

func TestBundleIsShownAsTheWorkThatWasPosted(t *testing.T) {
	const bundle = `{"id":"b-1","kind":"ResourceBundle","href":"/api/maestro/v1/resource-bundles/b-1","name":"b-1","consumer_name":"management-01",
		"version":3,"created_at":"2026-01-02T03:04:05Z","updated_at":"2026-01-02T03:04:06Z","deleted_at":"2026-01-02T03:04:07Z",
		"metadata":{"name":"w","namespace":"management-01","uid":"b-1"},
		"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"n":"1<2"}}],
		"delete_option":{"propagationPolicy":"Orphan"},
		"status":{"ObservedVersion":2,"SequenceID":"7",
			"conditions":[{"type":"Applied","status":"True","reason":"R","message":"M","lastTransitionTime":"2026-01-02T03:04:06Z"}],
			"resourceStatus":[{"resourceMeta":{"ordinal":0,"group":"","version":"v1","kind":"ConfigMap","resource":"configmaps","name":"c","namespace":""},
				"conditions":[],"statusFeedback":{}}]},
		"delivery":{"acknowledged_generation":2,"attempts":1,"accepted_at":"2026-01-02T03:04:05.5Z","last_error":"x"}}`
	const want = `{"id":"b-1","kind":"ManifestWork","href":"/api/v0/work/b-1","cluster_id":"management-01","name":"w","generation":3,
		"created_at":"2026-01-02T03:04:05Z","updated_at":"2026-01-02T03:04:06Z","deleted_at":"2026-01-02T03:04:07Z",
		"data":{"apiVersion":"work.open-cluster-management.io/v1","kind":"ManifestWork","metadata":{"name":"w","namespace":"management-01","uid":"b-1"},
			"spec":{"workload":{"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"n":"1<2"}}]},"deleteOption":{"propagationPolicy":"Orphan"}}},
		"status":{"observedGeneration":2,
			"conditions":[{"type":"Applied","status":"True","reason":"R","message":"M","lastTransitionTime":"2026-01-02T03:04:06Z"}],
			"resourceStatus":{"manifests":[{"resourceMeta":{"ordinal":0,"group":"","version":"v1","kind":"ConfigMap","resource":"configmaps","name":"c","namespace":""},
				"statusFeedback":{},"conditions":[]}]}},
		"delivery":{"acknowledged_generation":2,"attempts":1,"accepted_at":"2026-01-02T03:04:05.5Z","last_error":"x"}}`
	w, err := decodeWork([]byte(bundle))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(parsed(t, want), parsed(t, string(got))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWorkWithoutStatusHasEmptyLists(t *testing.T) {
	got, err := json.Marshal(createdWork("b-1", "management-01", "w"))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"id":"b-1","kind":"ManifestWork","href":"/api/v0/work/b-1","cluster_id":"management-01","name":"w","status":{"conditions":[],"resourceStatus":{"manifests":[]}}}`
	if diff := cmp.Diff(parsed(t, want), parsed(t, string(got))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSecretsAreMaskedWhereverTheyStandI11(t *testing.T) {
	const secret = `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"c2VjcmV0","a":"b"}},"data":{"k":"c2VjcmV0"},"stringData":{"j":"secret"}}`
	const work = `{"apiVersion":"work.open-cluster-management.io/v1","kind":"ManifestWork","spec":{"workload":{"manifests":[` + secret + `]}}}`
	for _, doc := range []string{
		`{"items":[{"manifests":[` + secret + `],"n":12345678901234567890}]}`,
		`{"manifests":[` + work + `]}`,
		`{"manifests":[{"apiVersion":"v1","kind":"List","items":[` + secret + `]}]}`,
		strings.Replace(secret, `{"k":"c2VjcmV0"}`, `"c2VjcmV0"`, 1),
		`{"manifests":[{"apiVersion":"v1","kind":"SecretList","items":[` +
			strings.Replace(secret, `"apiVersion":"v1","kind":"Secret",`, "", 1) + `]}]}`,
		`{"values":[{"fieldValue":{"type":"JsonRaw","jsonRaw":` + strconv.Quote("["+secret+"]") + `}}],"n":` + secret + `}`,
	} {
		got, err := maskSecrets([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		for _, leak := range []string{"c2VjcmV0", `"secret"`} {
			if strings.Contains(strings.ReplaceAll(string(got), `\`, ""), leak) {
				t.Errorf("%s is shown in %s", leak, got)
			}
		}
		if !strings.Contains(string(got), `"a":"b"`) {
			t.Errorf("what is no secret is gone: %s", got)
		}
		if strings.Contains(doc, "12345678901234567890") != strings.Contains(string(got), "12345678901234567890") {
			t.Errorf("a number changed: %s", got)
		}
		if !hasMask(got) && strings.Contains(doc, `"stringData"`) {
			t.Errorf("the mask is not found again in %s", got)
		}
	}
	const plain = `{"apiVersion":"v1","kind":"ConfigMap","data":{"k":"v"}}`
	if got, err := maskSecrets([]byte(plain)); err != nil || string(got) != plain {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestI11StatusesOfSecretsShowNoValues(t *testing.T) {
	const status = `{"status":{"resourceStatus":{"manifests":[
		{"resourceMeta":{"group":"","kind":"Secret","resource":"secrets"},
			"statusFeedback":{"values":[{"name":"k","fieldValue":{"type":"String","string":"c2VjcmV0"}}]},
			"conditions":[{"type":"Applied","message":"Apply manifest complete"},{"type":"Mine","message":"c2VjcmV0"}]},
		{"resourceMeta":{"group":"","kind":"ConfigMap","resource":"configmaps"},
			"statusFeedback":{"values":[{"name":"k","fieldValue":{"type":"String","string":"shown"}}]}}]}}}`
	got, err := maskSecrets([]byte(status))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(got), "c2VjcmV0") || !strings.Contains(string(got), "shown") ||
		!strings.Contains(string(got), "Apply manifest complete") {
		t.Errorf("got %s", got)
	}
}

func TestI11WorksShowNoValuesOfSecretsInTheirStatus(t *testing.T) {
	const bundle = `{"id":"b-1","consumer_name":"m","status":{"resourceStatus":[
		{"resourceMeta":{"group":"","version":"v1","kind":"Secret","resource":"secrets","name":"s"},
			"statusFeedback":{"values":[{"name":"k","fieldValue":{"type":"String","string":"c2VjcmV0"}}]},
			"conditions":[{"type":"Applied","status":"True","message":"Apply manifest complete"},
				{"type":"Mine","status":"True","message":"c2VjcmV0"}]}]}}`
	w, err := decodeWork([]byte(bundle))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(got), "c2VjcmV0") || !strings.Contains(string(got), "Apply manifest complete") {
		t.Errorf("got %s", got)
	}
}

// Kubernetes' clients resolve the kind "secret" like "Secret", and JSON has other forms of each letter.
func TestI11EverySpellingOfASecretIsMasked(t *testing.T) {
	for _, kind := range []string{"Secret", "secret", "SECRET", `\u0053ecret`, `secre\u0074`} {
		got, err := maskSecrets([]byte(`{"apiVersion":"v1","kind":"` + kind + `","data":{"k":"c2VjcmV0"}}`))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(got), "c2VjcmV0") {
			t.Errorf("the manifest shows its value: %s", got)
		}
		masked := strings.Replace(contractWork, `"kind":"ConfigMap"`, `"kind":"`+kind+`"`, 1)
		masked = strings.Replace(masked, `"data":{"k":"v<&>"}`, `"data":{"k":"***"}`, 1)
		if _, err := parseWork([]byte(masked)); codeOf(err) != codeInvalidWork {
			t.Errorf("a masked value of kind %s is accepted: %v", kind, err)
		}
	}
	for _, meta := range []string{
		`"group":"","kind":"secret","resource":"secrets"`, `"kind":"secret"`, `"group":"","kind":"","resource":"secrets"`,
	} {
		got, err := maskSecrets([]byte(`{"resourceMeta":{` + meta +
			`},"statusFeedback":{"values":[{"name":"k","fieldValue":{"type":"String","string":"c2VjcmV0"}}]}}`))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(got), "c2VjcmV0") {
			t.Errorf("the status shows a value: %s", got)
		}
	}
	const other = `{"resourceMeta":{"group":"example.com","kind":"Secret","resource":"secrets"},
		"statusFeedback":{"values":[{"name":"k"}]}}`
	if got, err := maskSecrets([]byte(other)); err != nil || !strings.Contains(string(got), `"k"`) {
		t.Errorf("the Secret of another group is masked: %s, %v", got, err)
	}
}

// The error of an API server about a Secret may quote its content.
func TestI11FailuresOfSecretsShowNoValues(t *testing.T) {
	const status = `{"resourceMeta":{"group":"","kind":"Secret","resource":"secrets"},"conditions":[
		{"type":"Applied","status":"False","message":"Failed to apply manifest: .stringData.pin: expected string, got c2VjcmV0"},
		{"type":"StatusFeedbackSynced","status":"False","message":"Sync status feedback failed with error ` +
		work.SecretRulesRefused + `"},
		{"type":"Available","status":"True","message":"Resource is available"}]}`
	const plain = `{"resourceMeta":{"group":"","kind":"Secret","resource":"secrets"},"conditions":[
		{"type":"Applied","status":"False","message":"Failed to apply manifest: namespaces \"x\" not found"}]}`
	if got, err := maskSecrets([]byte(plain)); err != nil || !strings.Contains(string(got), "not found") {
		t.Errorf("got %s, %v; the reason has no value of the Secret", got, err)
	}
	got, err := maskSecrets([]byte(status))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(got), "c2VjcmV0") || !strings.Contains(string(got), work.SecretRulesRefused) ||
		!strings.Contains(string(got), "Resource is available") {
		t.Errorf("got %s", got)
	}
}

func parsed(t *testing.T, doc string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(doc), &v); err != nil {
		t.Fatalf("%v in %s", err, doc)
	}
	return v
}
