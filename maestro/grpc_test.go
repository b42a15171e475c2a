package maestro

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/wire"
	"atoll.dev/pki"
)

func isCode(err error, code string) bool { return err != nil && status.Code(err).String() == code }

// kubeStatus reads the message of an error as sdk-go's clients do.
func kubeStatus(t *testing.T, err error) metav1.Status {
	t.Helper()
	var body struct{ ErrStatus metav1.Status }
	if jerr := json.Unmarshal([]byte(status.Convert(err).Message()), &body); jerr != nil {
		t.Errorf("%v: %v", err, jerr)
	}
	return body.ErrStatus
}

func historyOf(t *testing.T, dsn, kind string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	rows, err := conn.Query(t.Context(),
		`select action || ' ' || principal || ' ' || account || ' ' || request_id from history where kind = $1 order by xid, seq`, kind)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestVersionRules(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	m.consumer("mc1")
	m.consumer("mc2")
	src := m.source()
	data := func(v any) []byte { return specData(configMap("x", v)) }
	refuse := func(what string, err error, code string, reason metav1.StatusReason, text string) {
		t.Helper()
		st := kubeStatus(t, err)
		if !isCode(err, code) || st.Reason != reason || !strings.Contains(st.Message, text) || st.Status != "Failure" {
			t.Errorf("%s: %v", what, err)
		}
	}
	src.create("mc1", "w1", 1)
	refuse("create twice", src.publish(src.event(work.SpecCreate, "mc1", "w1", 0, data(1))), "AlreadyExists",
		"AlreadyExists", "failed to create resource: maestro-6: This Resource already exists")
	refuse("unknown consumer", src.publish(src.event(work.SpecCreate, "mc9", "w9", 0, data(1))), "InvalidArgument",
		"Invalid", `no consumer named "mc9"`)
	refuse("update of unknown", src.publish(src.event(work.SpecUpdate, "mc1", "w9", 0, data(1))), "NotFound",
		"NotFound", "maestro-7")
	if err := src.publish(src.event(work.SpecDelete, "mc1", "w9", 0, nil)); err != nil {
		t.Errorf("delete of unknown: %v", err)
	}

	// 0 takes whatever is there; else it must be the latest.
	if err := src.publish(src.event(work.SpecUpdate, "mc1", "w1", 0, data(2))); err != nil {
		t.Fatal(err)
	}
	refuse("stale", src.publish(src.event(work.SpecUpdate, "mc1", "w1", 1, data(3))), "Aborted", "Conflict",
		"failed to update resource: maestro-6: the resource version is not the latest, the latest version: 2")
	if err := src.publish(src.event(work.SpecUpdate, "mc1", "w1", 2, data(3))); err != nil {
		t.Fatal(err)
	}
	if v := m.bundle("w1").Version; v != 3 {
		t.Errorf("version %d", v)
	}
	// The same content, as another event: nothing happens (I3), whatever its
	// order of keys.
	before := len(historyOf(t, m.site.dsn, "Bundle"))
	same := []byte(
		`{"manifests":[{"data":{"value":"3"},"metadata":{"namespace":"default","name":"x"},"kind":"ConfigMap","apiVersion":"v1"}]}`)
	if err := src.publish(src.event(work.SpecUpdate, "mc1", "w1", 3, same)); err != nil {
		t.Fatal(err)
	}
	if v := m.bundle("w1").Version; v != 3 || len(historyOf(t, m.site.dsn, "Bundle")) != before {
		t.Errorf("an equal update made version %d", v)
	}
	// atollifmatch is the ETag.
	e := src.event(work.SpecUpdate, "mc1", "w1", 0, data(4))
	e.Attributes["ce-"+work.ExtIfMatch] = textAttribute("1")
	refuse("if-match", src.publish(e), "FailedPrecondition", "Conflict", "maestro-412")
	e.Attributes["ce-"+work.ExtIfMatch] = textAttribute("3")
	if err := src.publish(e); err != nil {
		t.Errorf("if-match: %v", err)
	}

	other := &source{t: t, client: src.client, name: "another-source"}
	refuse("another source's", other.publish(other.event(work.SpecUpdate, "mc1", "w1", 0, data(5))), "PermissionDenied",
		"Forbidden", "belongs to source")
	refuse("another source's", other.publish(other.event(work.SpecDelete, "mc1", "w1", 0, nil)), "PermissionDenied",
		"Forbidden", "belongs to source")
	refuse("moving", src.publish(src.event(work.SpecUpdate, "mc2", "w1", 0, data(5))), "InvalidArgument", "Invalid",
		"cannot move")

	src.remove("mc1", "w1")
	src.remove("mc1", "w1")
	refuse("under deletion", src.publish(src.event(work.SpecUpdate, "mc1", "w1", 0, data(6))), "Aborted", "Conflict",
		"the resource is under deletion, id: w1")
	refuse("under deletion", src.publish(src.event(work.SpecCreate, "mc1", "w1", 0, data(6))), "AlreadyExists",
		"AlreadyExists", "already exists")
}

func TestEventsAreValidated(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	m.consumer("mc1")
	src := m.source()
	manifest := func(s string) []byte { return specData(s) }
	for what, c := range map[string]struct {
		change func(*cloudevents.CloudEvent)
		text   string
	}{
		"no manifests": {data(specData()), "manifests is empty"},
		"not JSON":     {data([]byte("{")), "cannot be read"},
		"no kind": {data(manifest(`{"apiVersion":"v1","metadata":{"name":"x"}}`)),
			"manifests[0]: kind is missing"},
		"another Kind": {data(manifest(`{"apiVersion":"v1","kind":"Pod","Kind":"Secret","metadata":{"name":"x"}}`)),
			`the member "Kind" is not one of a Kubernetes object; write kind`},
		"no apiVersion": {data(manifest(`{"kind":"Pod","metadata":{"name":"x"}}`)), "apiVersion is missing"},
		"no name":       {data(manifest(`{"apiVersion":"v1","kind":"Pod"}`)), "metadata.name is missing"},
		"generateName": {data(manifest(`{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"x"}}`)),
			"generateName"},
		"a version": {
			data(
				manifest(
					`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x","resourceVersion":"1"}}`)),
			"resourceVersion"},
		"bad labels": {
			data(
				manifest(
					`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x","labels":{"a b":"c"}}}`)),
			"metadata.labels"},
		"a manifest": {data(manifest(`7`)), "not a Kubernetes object"},
		"twice":      {data(specData(configMap("x", 1), configMap("x", 2))), "manifests[1] is the same object"},
		"large":      {data(manifest(configMap("x", strings.Repeat("a", 501<<10)))), "split the work"},
		"NUL":        {data(manifest(configMap("x", `\u0000`))), "cannot be stored"},
		"bad option": {data([]byte(`{"manifests":[` + configMap("x", 1) + `],"deleteOption":7}`)), "deleteOption"},
		"no id":      {attr("ce-resourceid", ""), "resourceid is missing"},
		"bad id":     {attr("ce-resourceid", "A_B"), "resourceid"},
		"no version": {func(e *cloudevents.CloudEvent) { delete(e.Attributes, "ce-resourceversion") },
			"resourceversion is missing"},
		"bad version":  {attr("ce-resourceversion", "x"), "is not a version"},
		"no consumer":  {attr("ce-clustername", ""), "clustername is missing"},
		"bad metadata": {attr("ce-metadata", "{"), "metadata"},
		"bad name":     {attr("ce-metadata", `{"name":"A_B"}`), "metadata: name"},
		"no source":    {func(e *cloudevents.CloudEvent) { e.Source = "" }, "no source"},
		"long source": {func(e *cloudevents.CloudEvent) { e.Source = strings.Repeat("s", 300) },
			"source has 300 bytes"},
		"large metadata": {attr("ce-metadata", `{"annotations":{"a":"`+strings.Repeat("x", 65000)+`"}}`),
			"leave out annotations"},
		"no event id": {func(e *cloudevents.CloudEvent) { e.Id = "" }, "no id"},
		"unknown action": {func(e *cloudevents.CloudEvent) { e.Type = work.DataType + ".spec.undo_request" },
			"unsupported action"},
		"spec version": {func(e *cloudevents.CloudEvent) { e.SpecVersion = "0.3" }, "spec_version"},
		"bad time":     {attr("ce-time", "yesterday"), "ce-time"},
	} {
		e := src.event(work.SpecCreate, "mc1", "w1", 0, specData(configMap("x", 1)))
		c.change(e)
		err := src.publish(e)
		if !isCode(err, "InvalidArgument") || !strings.Contains(kubeStatus(t, err).Message, c.text) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := src.client.Publish(t.Context(), &cloudevents.PublishRequest{}); !isCode(err, "InvalidArgument") {
		t.Errorf("no event: %v", err)
	}
	big := src.event(work.SpecCreate, "mc1", "w1", 0, make([]byte, 5<<20))
	if err := src.publish(big); !isCode(err, "ResourceExhausted") {
		t.Errorf("over 4 MiB: %.200v", err)
	}
	// Every attribute may be text.
	e := src.event(work.SpecCreate, "mc1", "w1", 0, specData(configMap("x", 1)))
	e.Attributes["ce-resourceversion"] = textAttribute("0")
	e.Attributes["ce-time"] = textAttribute("2026-01-01T00:00:00Z")
	if err := src.publish(e); err != nil {
		t.Errorf("text attributes: %v", err)
	}
}

func data(d []byte) func(*cloudevents.CloudEvent) {
	return func(e *cloudevents.CloudEvent) { e.Data = &cloudevents.CloudEvent_BinaryData{BinaryData: d} }
}

func attr(key, value string) func(*cloudevents.CloudEvent) {
	return func(e *cloudevents.CloudEvent) { e.Attributes[key] = textAttribute(value) }
}

// statusStream is a source's subscription.
type statusStream struct {
	t      *testing.T
	id     work.ID
	client cloudevents.CloudEventServiceClient // of the same connection
	stream grpc.ServerStreamingClient[cloudevents.CloudEvent]
	events chan bus.Event
	beats  chan struct{}
	failed chan error
}

func (i *instance) subscribe(t *testing.T, sourceName string) *statusStream {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	client := i.dial(pki.ServiceName("platform-api"))
	stream, err := client.Subscribe(ctx, &cloudevents.SubscriptionRequest{Source: sourceName})
	if err != nil {
		t.Fatal(err)
	}
	header, err := stream.Header() // comes before any event
	if err != nil {
		t.Fatal(err)
	}
	ids := header.Get("subscription-id")
	if len(ids) != 1 || uuid.Validate(ids[0]) != nil {
		t.Fatalf("subscription-id %v", ids)
	}
	s := &statusStream{t: t, client: client, id: work.ID(ids[0]), stream: stream, events: make(chan bus.Event, 10000),
		beats: make(chan struct{}, 1000), failed: make(chan error, 1)}
	go func() {
		for {
			e, err := stream.Recv()
			if err != nil {
				s.failed <- err
				return
			}
			if e.GetType() == work.Heartbeat {
				s.beats <- struct{}{}
				continue
			}
			m, err := wire.FromProto(e)
			if err != nil {
				s.failed <- err
				return
			}
			s.events <- m
		}
	}()
	return s
}

func (s *statusStream) next() bus.Event {
	s.t.Helper()
	select {
	case m := <-s.events:
		return m
	case err := <-s.failed:
		s.t.Fatalf("the stream ended: %v", err)
	case <-time.After(patience):
		s.t.Fatal("no event")
	}
	return bus.Event{}
}

func TestASourceFollowsItsBundles(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start(func(o *Options) { o.Heartbeat = 50 * time.Millisecond })
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	stream, others := m.subscribe(t, testSource), m.subscribe(t, "another-source")
	select {
	case <-stream.beats:
	case <-time.After(patience):
		t.Fatal("no heartbeat")
	}

	src.create("mc1", "w1", "one")
	ev := stream.next()
	if ev.Type != work.StatusUpdate || ev.Source != "mc1-agent" || ev.Extensions[work.ExtResourceID] != "w1" ||
		ev.Extensions[work.ExtResourceVersion] != "1" ||
		ev.Extensions[work.ExtOriginalSource] != "maestro" || ev.Extensions[work.ExtClusterName] != "mc1" ||
		ev.Extensions[work.ExtSequenceID] == "" {
		t.Errorf("status %+v", ev)
	}
	var sd work.Status
	if err := json.Unmarshal(ev.Data, &sd); err != nil || sd.Bundle == nil || len(sd.Bundle.Manifests) != 1 ||
		len(sd.Conditions) != 1 || sd.Conditions[0].Type != "Applied" {
		t.Errorf("status data %s: %v", ev.Data, err)
	}
	if !strings.Contains(ev.Extensions[work.ExtMetadata], "name-of-w1") {
		t.Errorf("metadata %s: it is the source's", ev.Extensions[work.ExtMetadata])
	}
	agent.report("w1", "Available")
	if ev := stream.next(); !strings.Contains(string(ev.Data), "Available") {
		t.Errorf("status %s", ev.Data)
	}
	src.remove("mc1", "w1")
	for {
		ev := stream.next()
		var sd bundle.StatusData
		if err := json.Unmarshal(ev.Data, &sd); err != nil {
			t.Fatal(err)
		}
		if sd.Deleted() {
			break
		}
	}
	select {
	case ev := <-others.events:
		t.Errorf("another source got %+v", ev)
	default:
	}
}

func TestASourceResyncs(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	site.agent("mc1")
	src := m.source()
	for _, id := range []string{"w1", "w2", "w3"} {
		src.create("mc1", work.ID(id), 1)
	}
	eventually(t, "statuses are stored", func() error {
		for _, id := range []string{"w1", "w2", "w3"} {
			if m.bundle(work.ID(id)).Status.ObservedVersion != 1 {
				return fmt.Errorf("not of %s", id)
			}
		}
		return nil
	})
	early := m.subscribe(t, testSource)
	src.remove("mc1", "w3")
	for gone := false; !gone; {
		e := early.next()
		var sd bundle.StatusData
		gone = e.Extensions[work.ExtResourceID] == "w3" && json.Unmarshal(e.Data, &sd) == nil && sd.Deleted()
	}
	stream := m.subscribe(t, testSource) // to which nothing comes any more by itself
	ask := func(hashes ...work.StatusHash) {
		t.Helper()
		data, _ := json.Marshal(work.StatusHashes{Hashes: hashes})
		if err := src.publish(wire.ToProto(bus.Event{DataContentType: wire.JSONType, ID: uuid.NewString(), Source: testSource, Type: work.StatusResync,
			Data: data})); err != nil {
			t.Fatal(err)
		}
	}
	ask()
	got := []string{stream.next().Extensions[work.ExtResourceID], stream.next().Extensions[work.ExtResourceID]}
	slices.Sort(got)
	if !slices.Equal(got, []string{"w1", "w2"}) {
		t.Errorf("all: %v", got)
	}
	// Only what differs, and the end of what went while the source was away.
	ask(work.StatusHash{ID: "w1", Hash: hexHash("hash-w1-1")}, work.StatusHash{ID: "w2", Hash: "old"},
		work.StatusHash{ID: "w3", Hash: "old"})
	if id := stream.next().Extensions[work.ExtResourceID]; id != "w2" {
		t.Errorf("differing: %s", id)
	}
	last := stream.next()
	var sd bundle.StatusData
	if err := json.Unmarshal(last.Data, &sd); err != nil || last.Extensions[work.ExtResourceID] != "w3" || !sd.Deleted() {
		t.Errorf("deleted: %+v %s", last.Extensions, last.Data)
	}
}
