package bus

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
)

func TestTheGRPCFormKeepsAnEvent(t *testing.T) {
	e := Event{
		ID: "1", Source: "maestro", Type: work.SpecDelete, Subject: "s", Time: time.Date(2026, 1, 2, 3, 4, 5, 6,
			time.UTC), DataContentType: "application/json", DataSchema: "d",
		Extensions: map[string]string{
			work.ExtResourceVersion:   "7",
			work.ExtDeletionTimestamp: "2026-01-02T03:04:05Z",
			work.ExtOriginalSource:    "",
			work.ExtClusterName:       "mc1",
		},
		Data: []byte(`{}`),
	}
	p := e.Proto()
	if p.Attributes["ce-resourceversion"].GetCeInteger() != 7 ||
		p.Attributes["ce-deletiontimestamp"].GetCeTimestamp() == nil ||
		p.Attributes["ce-time"].GetCeTimestamp() == nil ||
		p.Attributes["contenttype"].GetCeString() != "application/json" || p.Attributes["datacontenttype"] != nil ||
		p.Attributes["ce-subject"].GetCeString() != "s" {
		t.Errorf("attributes %v", p.Attributes)
	}
	if _, present := p.Attributes["ce-originalsource"]; !present {
		t.Error("an empty extension is lost")
	}
	back, err := FromProto(p)
	if diff := cmp.Diff(e, back); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	// A version that no int32 holds is text.
	e.Extensions[work.ExtResourceVersion] = "3000000000"
	if back, err = FromProto(e.Proto()); back.Extensions[work.ExtResourceVersion] != "3000000000" || err != nil {
		t.Errorf("%+v, %v", back, err)
	}
}

func TestTheGRPCFormDecodesStructuredEvents(t *testing.T) {
	for _, kind := range []string{"application/cloudevents+json", "application/cloudevents+json; charset=UTF-8"} {
		e, err := FromProto(&cloudevents.CloudEvent{
			Attributes: map[string]*attribute{attributeContentType: textAttribute(kind)},
			Data: &cloudevents.CloudEvent_BinaryData{
				BinaryData: []byte(`{"specversion":"1.0","id":"1","source":"s","type":"t","resourceversion":3,
				"time":"2026-01-02T03:04:05Z","datacontenttype":"application/json","data":{"a":1}}`)},
		})
		want := Event{ID: "1", Source: "s", Type: "t", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			DataContentType: "application/json",
			Extensions:      map[string]string{"resourceversion": "3"}, Data: []byte(`{"a":1}`)}
		if diff := cmp.Diff(want, e); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", kind, err, diff)
		}
	}
}

func FuzzFromProto(f *testing.F) {
	for _, e := range []Event{
		{ID: "1", Source: "s", Type: "t", Data: []byte(`{"a":1}`), DataContentType: "application/json",
			Extensions: map[string]string{work.ExtResourceVersion: "1"}},
		{ID: "2", Type: Heartbeat},
		{ID: "3", Source: "s", Type: "t", DataContentType: structuredType,
			Data: []byte(`{"specversion":"1.0","id":"1","source":"s","type":"t"}`)},
	} {
		raw, err := proto.Marshal(e.Proto())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p cloudevents.CloudEvent
		if proto.Unmarshal(raw, &p) != nil {
			return
		}
		e, err := FromProto(&p)
		if err != nil {
			if !errors.Is(err, ErrNotAnEvent) {
				t.Fatalf("%v is not ErrNotAnEvent", err)
			}
			return
		}
		if strings.HasPrefix(strings.ToLower(strings.TrimSpace(e.DataContentType)), structuredType) {
			return // its data is an event again
		}
		back, err := FromProto(e.Proto())
		// The texts of a version and of a time have many forms; the types of the contract keep one.
		loose := cmpopts.IgnoreMapEntries(func(k, _ string) bool {
			return k == work.ExtResourceVersion ||
				k == work.ExtDeletionTimestamp
		})
		if diff := cmp.Diff(e, back, cmpopts.EquateEmpty(), loose, cmpopts.EquateApproxTime(0)); err != nil ||
			diff != "" {
			t.Fatalf("%v\n%s", err, diff)
		}
	})
}
