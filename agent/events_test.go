package agent

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/work"
)

func TestEventsOnTheWire(t *testing.T) {
	w := wire{consumer: "c1", source: "c1-agent", now: func() time.Time { return noon }}
	ev, err := w.status(&statusEvent{
		id: "w", spec: &spec{Generation: 2, Source: "maestro", Metadata: `{"name":"x"}`,
			Received: noon}, hash: "h", seq: 7, version: 2, applied: noon,
		status: work.Status{Conditions: []metav1.Condition{{Type: "Applied"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"clustername": "c1", "resourceid": "w", "resourceversion": "2", "originalsource": "maestro", "sequenceid": "7",
		"statushash": "h", "metadata": `{"name":"x"}`,
		"atollreceivedat": "2026-05-04T12:00:00.123456789Z", "atollappliedat": "2026-05-04T12:00:00.123456789Z",
	}
	if diff := cmp.Diff(want, ev.Extensions); diff != "" {
		t.Error(diff)
	}
	if ev.Type != work.StatusUpdate || ev.Source != "c1-agent" || ev.DataContentType != "application/json" {
		t.Errorf("%+v", ev)
	}
	if got, want := string(ev.Data),
		`{"conditions":[{"type":"Applied","status":"","lastTransitionTime":null,"reason":"","message":""}]}`; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	re, err := w.resync([]work.SpecVersion{{ID: "w", Version: 2}})
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := re.Extensions["originalsource"]; !ok || v != "" {
		t.Error("a resync must carry an empty originalsource")
	}
	if got, want := string(re.Data), `{"resourceVersions":[{"resourceID":"w","resourceVersion":2}]}`; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	none, err := w.resync((&core{}).specVersions())
	if err != nil || string(none.Data) != `{"resourceVersions":[]}` {
		t.Errorf("%s, %v", none.Data, err)
	}
	in := re
	in.Type, in.Source = work.SpecResyncResponse, "maestro"
	in.Extensions = map[string]string{"clustername": "c1", "resourceid": "w", "resourceversion": "3",
		"deletiontimestamp": "2026-05-04T12:00:00Z"}
	in.Data = nil
	got, err := w.decode(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s := got.(evSpec).spec; s.ID != "w" || s.Generation != 3 || !s.Deleting || s.Source != "maestro" {
		t.Errorf("a deletion without data reads as %+v", s)
	}
	in.Extensions["clustername"] = "c2"
	if _, err := w.decode(in, nil); err == nil {
		t.Error("an event for another cluster is taken")
	}
}

func FuzzSpecEvents(f *testing.F) {
	f.Add("w", "1", "", []byte(`{"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}]}`))
	f.Add("", "x", "2026-05-04T12:00:00Z", []byte(
		`{"manifests":[null,1,"x",{}],"deleteOption":{},"manifestConfigs":[{}]}`))
	f.Fuzz(func(t *testing.T, id, version, deletion string, data []byte) {
		s, err := func() (*spec, error) {
			generation, err := strconv.ParseInt(orZero(version), 10, 64)
			if err != nil {
				return nil, err
			}
			return decodeSpec(spec{ID: work.ID(id), Generation: generation, Source: "maestro", Deleting: deletion != "",
				Received: noon}, data)
		}()
		if err != nil {
			return
		}
		c := newCore(coreConfig{consumer: "c", hubHash: "h", fieldManager: "work-agent", maxRaw: 100, sendWindow: 1})
		c.step(evAMWsSynced{}, noon)
		c.step(evSpec{spec: s}, noon)
		c.step(evDurable{s.ID, s}, noon)
	})
}
