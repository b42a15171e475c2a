package rosa

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	} {
		got, err := maskSecrets([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		for _, leak := range []string{"c2VjcmV0", `"secret"`} {
			if strings.Contains(string(got), leak) {
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

func parsed(t *testing.T, doc string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(doc), &v); err != nil {
		t.Fatalf("%v in %s", err, doc)
	}
	return v
}
