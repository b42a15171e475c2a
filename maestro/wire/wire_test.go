package wire

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/jsonvalue"
	"atoll.dev/maestro/bundle"
	"atoll.dev/store"
)

// sampleBundle is a bundle as it is stored.
func sampleBundle(t *testing.T) store.Document {
	t.Helper()
	created := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	m := bus.Event{
		DataContentType: JSONType, ID: "event-1", Source: "src", Type: work.SpecCreate, Time: created,
		Extensions: map[string]string{
			work.ExtResourceID:      "w1",
			work.ExtClusterName:     "mc1",
			work.ExtResourceVersion: "0",
			work.ExtMetadata:        `{"name":"mine","labels":{"a":"<b>"},"creationTimestamp":null}`,
			work.ExtLogTracing:      `{"k":"v"}`,
		},
		Data: []byte(
			`{"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"big":"9007199254740993"}}],` +
				`"deleteOption":{"propagationPolicy":"Orphan"},"manifestConfigs":[{"resourceIdentifier":{"group":"","resource":"configmaps","name":"x","namespace":""}}],` +
				`"executer":{"subject":{"type":"ServiceAccount","serviceAccount":{"namespace":"n","name":"s"}}}}`,
		),
	}
	m.Extensions[work.ExtMetadata] = strings.Replace(m.Extensions[work.ExtMetadata], `"<b>"`, `"b"`, 1)
	req, err := DecodeSpec(m)
	if err != nil {
		t.Fatal(err)
	}
	req.Record.Version = 1
	spec, err := bundle.Marshal(req.Record)
	if err != nil {
		t.Fatal(err)
	}
	return store.Document{Kind: bundle.Kind, ID: "w1", Scope: "mc1", Version: 4, Generation: 2, Spec: spec,
		CreatedAt: created, UpdatedAt: created}
}

func withStatus(t *testing.T, d store.Document) store.Document {
	t.Helper()
	ev, err := DecodeStatus("mc1", bus.Event{
		DataContentType: JSONType, ID: "status-1", Source: "mc1-agent", Type: work.StatusUpdate,
		Extensions: map[string]string{
			work.ExtResourceID:      "w1",
			work.ExtClusterName:     "mc1",
			work.ExtResourceVersion: "2",
			work.ExtOriginalSource:  "maestro",
			work.ExtSequenceID:      "123",
			work.ExtStatusHash:      "abc",
		},
		Data: []byte(
			`{"manifestBundle":{"manifests":[]},"conditions":[{"type":"Applied","status":"True"}],"resourceStatus":[{"resourceMeta":{"ordinal":0},"statusFeedback":{"values":[{"name":"n","fieldValue":{"type":"Integer","integer":3}}]},"conditions":[]}]}`,
		),
	})
	if err != nil {
		t.Fatal(err)
	}
	if d.Status, err = bundle.Marshal(ev.Record); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestTheStoredFormIsTheWholeEvent(t *testing.T) {
	d := withStatus(t, sampleBundle(t))
	want := `{"id":"event-1","source":"src","specversion":"1.0","type":"io.open-cluster-management.works.v1alpha1.manifestbundles.spec.create_request","time":"2026-01-02T03:04:05.000006Z",` +
		`"datacontenttype":"application/json","clustername":"mc1","resourceid":"w1","resourceversion":1,"logtracing":"{\"k\":\"v\"}",` +
		`"metadata":{"name":"mine","labels":{"a":"b"},"creationTimestamp":null},"data":`
	if !strings.HasPrefix(string(d.Spec), want) {
		t.Errorf("%s", d.Spec)
	}
	if strings.Contains(string(d.Status), "manifestBundle") || !strings.Contains(string(d.Status),
		`"sequenceid":"123","statushash":"abc"`) {
		t.Errorf("%s", d.Status)
	}
}

func TestTheRESTForm(t *testing.T) {
	wire, err := bundle.Render(withStatus(t, sampleBundle(t)))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"consumer_name":"mc1","created_at":"2026-01-02T03:04:05.000006Z","delete_option":{"propagationPolicy":"Orphan"},"href":"/api/maestro/v1/resource-bundles/w1","id":"w1","kind":"ResourceBundle",` +
		`"manifest_configs":[{"resourceIdentifier":{"group":"","resource":"configmaps","name":"x","namespace":""}}],` +
		`"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"big":"9007199254740993"}}],` +
		`"metadata":{"creationTimestamp":"2026-01-02T03:04:05Z","labels":{"a":"b"},"name":"mine"},"name":"w1",` +
		`"status":{"ObservedVersion":2,"SequenceID":"123","conditions":[{"type":"Applied","status":"True"}],"resourceStatus":[{"resourceMeta":{"ordinal":0},"statusFeedback":{"values":[{"name":"n","fieldValue":{"type":"Integer","integer":3}}]},"conditions":[]}]},` +
		`"updated_at":"2026-01-02T03:04:05.000006Z","version":2}`
	if diff := cmp.Diff(want, string(wire)); diff != "" {
		t.Error(diff)
	}
	if strings.Contains(string(wire), "executer") {
		t.Error("executer is stored, and not returned")
	}
}

func TestTheEventsTowardsAgents(t *testing.T) {
	d := sampleBundle(t)
	m, err := EncodeSpec(d, "maestro")
	if err != nil {
		t.Fatal(err)
	}
	if m.Type != work.SpecUpdate || m.ID != "event-1" || m.Source != "maestro" || !m.Time.Equal(d.CreatedAt) {
		t.Errorf("%+v", m)
	}
	want := map[string]string{
		"resourceid": "w1", "resourceversion": "2", "clustername": "mc1", "logtracing": `{"k":"v"}`,
		"metadata": `{"creationTimestamp":null,"labels":{"a":"b"},"name":"w1"}`,
	}
	if diff := cmp.Diff(want, m.Extensions); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(string(m.Data), `"executer":{"subject":{"serviceAccount":`) {
		t.Errorf("the contract's spelling: %s", m.Data)
	}

	// A deletion is a new event with all the data.
	deleted := time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC)
	d.DeletedAt = &deleted
	gone, err := EncodeSpec(d, "maestro")
	if err != nil {
		t.Fatal(err)
	}
	if gone.Type != work.SpecDelete || gone.ID == m.ID ||
		gone.Extensions["deletiontimestamp"] != "2026-01-03T00:00:00Z" ||
		!jsonvalue.EqualOptional(gone.Data, m.Data) ||
		!gone.Time.After(m.Time) {
		t.Errorf("%+v", gone)
	}

	// What was confirmed once has no data any more.
	buried := EncodeTombstone("mc1", "w1", 7, "maestro", deleted)
	wantExt := map[string]string{"resourceid": "w1", "resourceversion": "7", "clustername": "mc1",
		"deletiontimestamp": "2026-01-03T00:00:00Z"}
	if diff := cmp.Diff(wantExt, buried.Extensions); diff != "" || len(buried.Data) != 0 ||
		buried.Type != work.SpecResyncResponse {
		t.Errorf("%+v %s", buried, diff)
	}
}

// The original's data are compact and in the order of keys; PostgreSQL's text of them is neither.
func TestDataAreWrittenAsTheOriginalWritesThem(t *testing.T) {
	got, err := canonical([]byte(`{"kind": "X", "data": {"b": 9007199254740993, "a": 1.50}, "apiVersion": "v1"}`))
	if want := `{"apiVersion":"v1","data":{"a":1.50,"b":9007199254740993},"kind":"X"}`; err != nil ||
		string(got) != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

func TestTheEventsTowardsSources(t *testing.T) {
	d := sampleBundle(t)
	if _, ok, err := EncodeStatus(&store.Change{Document: d}); ok || err != nil {
		t.Errorf("a bundle without status: %v %v", ok, err)
	}
	d = withStatus(t, d)
	older := d
	older.Generation = 3
	if _, ok, _ := EncodeStatus(&store.Change{Document: older}); ok {
		t.Error("the status of an older generation is delivered again")
	}
	m, ok, err := EncodeStatus(&store.Change{Document: d})
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	e := ToProto(m)
	e.Id, e.Data = "x", nil
	text, err := protojson.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	// contenttype, not datacontenttype; all others with the prefix.
	if err := json.Unmarshal(
		[]byte(
			`{"id":"x","source":"mc1-agent","specVersion":"1.0","type":"io.open-cluster-management.works.v1alpha1.manifestbundles.status.update_request","attributes":{
		"contenttype":{"ceString":"application/json"},"ce-time":{"ceTimestamp":"2026-01-02T03:04:05.000006Z"},
		"ce-resourceid":{"ceString":"w1"},"ce-resourceversion":{"ceInteger":2},"ce-clustername":{"ceString":"mc1"},"ce-originalsource":{"ceString":"maestro"},
		"ce-sequenceid":{"ceString":"123"},"ce-statushash":{"ceString":"abc"},"ce-metadata":{"ceString":"{\"creationTimestamp\":\"2026-01-02T03:04:05Z\",\"labels\":{\"a\":\"b\"},\"name\":\"mine\"}"}}}`,
		), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// And back.
	back, err := FromProto(ToProto(m))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m, back); diff != "" {
		t.Error(diff)
	}
	d.Removed = true
	gone, ok, err := EncodeStatus(&store.Change{Document: d})
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	var sd bundle.StatusData
	if err := json.Unmarshal(gone.Data, &sd); err != nil || !sd.Deleted() || len(sd.Conditions) != 2 ||
		len(sd.Bundle) == 0 {
		t.Errorf("%s %v", gone.Data, err)
	}
}

// FuzzFromProto: nothing that a client sends makes the decoder panic.
func FuzzFromProto(f *testing.F) {
	f.Add("id", "src", work.SpecCreate, "w1", "mc1", "0", `{"name":"x"}`,
		[]byte(`{"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}]}`))
	f.Add("id", "src", work.SpecUpdate, "w1", "mc1", "1", `null`, []byte(`null`))
	f.Fuzz(func(t *testing.T, id, source, kind, bundleID, consumer, version, metadata string, data []byte) {
		m, err := FromProto(&cloudevents.CloudEvent{
			Id: id, Source: source, SpecVersion: "1.0", Type: kind,
			Attributes: map[string]*cloudevents.CloudEvent_CloudEventAttributeValue{
				"ce-resourceid": textAttribute(bundleID), "ce-clustername": textAttribute(consumer),
				"ce-resourceversion": textAttribute(version),
				"ce-metadata":        textAttribute(metadata),
			},
			Data: &cloudevents.CloudEvent_BinaryData{BinaryData: data},
		})
		if err != nil {
			return
		}
		req, err := DecodeSpec(m)
		if err != nil || kind == work.SpecDelete {
			return
		}
		spec, err := bundle.Marshal(req.Record)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bundle.Render(store.Document{Kind: bundle.Kind, ID: bundleID, Scope: consumer, Generation: 1,
			Spec: spec}); err != nil {
			t.Errorf("what was taken cannot be shown: %v", err)
		}
	})
}

func textAttribute(s string) *cloudevents.CloudEvent_CloudEventAttributeValue {
	return &cloudevents.CloudEvent_CloudEventAttributeValue{
		Attr: &cloudevents.CloudEvent_CloudEventAttributeValue_CeString{CeString: s}}
}
