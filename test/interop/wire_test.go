package interop

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	cloudeventsmqtt "github.com/cloudevents/sdk-go/protocol/mqtt_paho/v2"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	pb "open-cluster-management.io/sdk-go/pkg/cloudevents/generic/options/grpc/protobuf/v1"
)

const bundles = "io.open-cluster-management.works.v1alpha1.manifestbundles."

// grpcClient is a plain client of the original's gRPC service.
func (s *server) grpcClient(t *testing.T) pb.CloudEventServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: s.world.caPool, Certificates: []tls.Certificate{s.platform.pair}})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return pb.NewCloudEventServiceClient(conn)
}

func text(s string) *pb.CloudEventAttributeValue {
	return &pb.CloudEventAttributeValue{Attr: &pb.CloudEventAttributeValue_CeString{CeString: s}}
}

var captured = time.Date(2026, 8, 4, 10, 11, 12, 0, time.UTC)

// event is an event as OCM's SDK puts it on gRPC.
func event(source, kind, cluster, id string, version int32, data string) *pb.CloudEvent {
	e := &pb.CloudEvent{
		Id: uuid.NewString(), Source: source, SpecVersion: "1.0", Type: bundles + kind,
		Attributes: map[string]*pb.CloudEventAttributeValue{
			"contenttype":    text("application/json"),
			"ce-clustername": text(cluster), "ce-resourceid": text(id),
			"ce-resourceversion": {Attr: &pb.CloudEventAttributeValue_CeInteger{CeInteger: version}},
			"ce-time": {Attr: &pb.CloudEventAttributeValue_CeTimestamp{CeTimestamp: timestamppb.New(
				captured)}},
			"ce-metadata": text(
				fmt.Sprintf(`{"name":"nginx","namespace":%q,"uid":%q,"labels":{"app":"nginx","tier":"web"}}`, cluster,
					id)),
			"ce-logtracing": text(`{"logging.open-cluster-management.io/op-id":"op-1"}`),
		},
		Data: &pb.CloudEvent_BinaryData{BinaryData: []byte(data)},
	}
	if data == "" {
		e.Data = nil
	}
	return e
}

const spec = `{"manifests":[{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"nginx",` +
	`"namespace":"default"},"data":{"b":"2","a":"1"}}],` +
	`"executer":{"subject":{"type":"ServiceAccount","serviceAccount":{"namespace":"default","name":"runner"}}},` +
	`"deleteOption":{"propagationPolicy":"Orphan"}}`

// The golden capture of the original server's create, update and delete, and of the answers to
// sources: attribute by attribute, as a plain MQTT client and OCM's agent codec read them.
func TestEventsOfOurServerEqualTheOriginals(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s, ctx := w.mosquitto, t.Context()
	var consumer struct{ ID, Name string }
	s.callREST(t, "POST", "/v1/consumers", `{"name":"golden"}`, http.StatusCreated, &consumer)
	if consumer.ID == consumer.Name || consumer.ID == "" {
		t.Fatalf("consumer %+v: its id is not its name", consumer)
	}
	o, client := w.observe(t, s.broker), s.grpcClient(t)
	topic := "sources/maestro/consumers/golden/sourceevents"
	id := uuid.NewString()

	stream, err := client.Subscribe(ctx, &pb.SubscriptionRequest{Source: "golden-source"})
	if err != nil {
		t.Fatal(err)
	}
	header, err := stream.Header() // comes without an event
	if err != nil {
		t.Fatal(err)
	}
	if got := header.Get("subscription-id"); len(got) != 1 || uuid.Validate(got[0]) != nil {
		t.Errorf("header subscription-id is %q", got)
	}

	// The version that a source gives a create does not count: the database begins with 1.
	create := event("golden-source", "spec.create_request", "golden", id, 7, spec)
	if _, err := client.Publish(ctx, &pb.PublishRequest{Event: create}); err != nil {
		t.Fatal(err)
	}
	m := o.next(t, topic, "spec.create_request")
	if m.QoS != 1 || m.Retain || m.Properties.ContentType != "application/json" {
		t.Errorf("QoS %d, retain %t, content type %q", m.QoS, m.Retain, m.Properties.ContentType)
	}
	got := properties(t, m)
	var meta map[string]any
	if err := json.Unmarshal([]byte(got["ce-metadata"]), &meta); err != nil {
		t.Errorf("ce-metadata %q: %v", got["ce-metadata"], err)
	}
	wantMeta := map[string]any{"name": id, "namespace": "golden", "uid": id, "labels": map[string]any{"app": "nginx",
		"tier": "web"}}
	for _, key := range []string{"creationTimestamp", "generation", "resourceVersion"} {
		delete(meta, key) // of the server; agents ignore them
	}
	if diff := cmp.Diff(wantMeta, meta); diff != "" {
		t.Errorf("metadata (want is -):\n%s", diff)
	}
	delete(got, "ce-metadata")
	// Our only addition; a client that does not know an extension ignores it.
	if life := got["ce-atolllife"]; len(life) != 8 {
		t.Errorf("ce-atolllife %q", life)
	}
	delete(got, "ce-atolllife")
	golden := map[string]string{
		"ce-specversion": "1.0", "ce-id": create.Id, "ce-source": "maestro", "ce-type": bundles + "spec.create_request",
		"ce-time": "2026-08-04T10:11:12Z", "ce-clustername": "golden", "ce-resourceid": id, "ce-resourceversion": "1",
		"ce-logtracing": `{"logging.open-cluster-management.io/op-id":"op-1"}`,
	}
	if diff := cmp.Diff(golden, got); diff != "" {
		t.Errorf("user properties of the create (want is -):\n%s", diff)
	}
	sorted := `{"deleteOption":{"propagationPolicy":"Orphan"},` +
		`"executer":{"subject":{"serviceAccount":{"name":"runner","namespace":"default"},"type":"ServiceAccount"}},` +
		`"manifests":[{"apiVersion":"v1","data":{"a":"1","b":"2"},"kind":"ConfigMap","metadata":{"name":"nginx",` +
		`"namespace":"default"}}]}`
	if string(m.Payload) != sorted {
		t.Errorf("body\n%s, want\n%s", m.Payload, sorted)
	}
	work := decodeWork(t, m)
	if work.Name != id || work.Namespace != "golden" || string(work.UID) != id || work.Generation != 1 ||
		work.Labels["tier"] != "web" {
		t.Errorf("OCM's agent codec reads %+v", work.ObjectMeta)
	}
	if e := work.Spec.Executor; e == nil || e.Subject.ServiceAccount.Name != "runner" {
		t.Errorf("OCM's agent codec reads the executor %+v", e)
	}
	if p := work.Spec.DeleteOption; p == nil || p.PropagationPolicy != workv1.DeletePropagationPolicyTypeOrphan {
		t.Errorf("OCM's agent codec reads the delete option %+v", p)
	}

	// An update with version 0: the last write wins.
	update := event("golden-source", "spec.update_request", "golden", id, 0, strings.Replace(spec, `"2"`, `"3"`, 1))
	if _, err := client.Publish(ctx, &pb.PublishRequest{Event: update}); err != nil {
		t.Fatal(err)
	}
	m = o.next(t, topic, "spec.update_request")
	got = properties(t, m)
	if got["ce-resourceversion"] != "2" || got["ce-id"] != update.Id || got["ce-source"] != "maestro" ||
		!strings.Contains(string(m.Payload), `"b":"3"`) {
		t.Errorf("the update is %v %s", got, m.Payload)
	}

	// A delete: another id, another time, a deletion timestamp, and all of the data.
	gone := event("golden-source", "spec.delete_request", "golden", id, 2, "")
	gone.Attributes["ce-deletiontimestamp"] = &pb.CloudEventAttributeValue{
		Attr: &pb.CloudEventAttributeValue_CeTimestamp{CeTimestamp: timestamppb.New(captured)}}
	if _, err := client.Publish(ctx, &pb.PublishRequest{Event: gone}); err != nil {
		t.Fatal(err)
	}
	deleted := o.next(t, topic, "spec.delete_request")
	props := properties(t, deleted)
	if props["ce-id"] == update.Id || props["ce-id"] == "" || props["ce-time"] == got["ce-time"] ||
		string(deleted.Payload) != string(m.Payload) ||
		props["ce-resourceid"] != id || props["ce-clustername"] != "golden" || props["ce-resourceversion"] == "" {
		t.Errorf("the delete is %v %s", props, deleted.Payload)
	}
	if _, err := time.Parse(time.RFC3339, props["ce-deletiontimestamp"]); err != nil {
		t.Errorf("deletion timestamp: %v", err)
	}
	if work := decodeWork(t, deleted); work.DeletionTimestamp.IsZero() || string(work.UID) != id {
		t.Errorf("OCM's agent codec reads the deletion as %+v", work.ObjectMeta)
	}

	s.checkDeletingBundle(t, id)
	s.checkStatusToSource(t, stream, id)
}

// checkStatusToSource lets an agent acknowledge, and checks the events to the source.
func (s *server) checkStatusToSource(t *testing.T, stream grpc.ServerStreamingClient[pb.CloudEvent], id string) {
	t.Helper()
	agent := s.startAgentClient(t, "golden", byMQTT, s.broker)
	work := agent.awaitWork(t, "the deletion", func(w *workv1.ManifestWork) error {
		if string(w.UID) != id || w.DeletionTimestamp.IsZero() {
			return fmt.Errorf("%s", w.UID)
		}
		return nil
	})
	agent.report(t, work, &workv1.ManifestWorkStatus{Conditions: []metav1.Condition{
		{Type: "Deleting", Status: metav1.ConditionTrue, Reason: "WorkDeleting", LastTransitionTime: metav1.Now()}}})
	agent.report(t, agent.awaitWork(t, "its own status", func(w *workv1.ManifestWork) error {
		if len(w.Status.Conditions) != 1 {
			return fmt.Errorf("%+v", w.Status)
		}
		return nil
	}), nil)
	heartbeat := false
	for statuses := 0; statuses < 2 || !heartbeat; {
		e, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == "io.open-cluster-management.cloudevents.heartbeat" {
			heartbeat = true
			if e.Source != "" || e.SpecVersion != "1.0" || e.Id == "" {
				t.Errorf("heartbeat %v", e)
			}
			continue
		}
		a := e.Attributes
		if e.Type != bundles+"status.update_request" || e.Source != "golden-agent" ||
			a["ce-resourceid"].GetCeString() != id {
			continue // a status of the server's own, such as of what it sent
		}
		statuses++
		if a["contenttype"].GetCeString() != "application/json" || a["datacontenttype"] != nil ||
			a["ce-datacontenttype"] != nil ||
			a["ce-clustername"].GetCeString() != "golden" || a["ce-originalsource"].GetCeString() != "maestro" ||
			a["ce-sequenceid"].GetCeString() == "" ||
			a["ce-resourceversion"].GetCeInteger() != 2 || len(a["ce-statushash"].GetCeString()) != 64 {
			t.Errorf("attributes of a status: %v", a)
		}
		var meta metav1.ObjectMeta
		if err := json.Unmarshal([]byte(a["ce-metadata"].GetCeString()), &meta); err != nil || meta.Name != "nginx" {
			t.Errorf("metadata of a status: %v %v; want the source's", a["ce-metadata"], err)
		}
		var data struct {
			ManifestBundle struct{ Manifests []json.RawMessage }
			Conditions     []metav1.Condition
		}
		if err := json.Unmarshal(e.GetBinaryData(), &data); err != nil || len(data.ManifestBundle.Manifests) != 1 {
			t.Errorf("data of a status: %v %s; want the spec in manifestBundle", err, e.GetBinaryData())
		}
		if statuses == 2 && (len(data.Conditions) == 0 || data.Conditions[len(data.Conditions)-1].Type != "Deleted") {
			t.Errorf("the last status is %s", e.GetBinaryData())
		}
	}
	eventually(t, "the bundle is gone", func() error {
		if status, body := s.call(t, "GET", "/v1/resource-bundles/"+id, ""); status != http.StatusNotFound {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
}

func (s *server) search(t *testing.T, search string) []bundle {
	t.Helper()
	var all []bundle
	const size = 400 // as the original's client reads: until a page is short
	for page := 1; ; page++ {
		var list struct {
			Kind  string   `json:"kind"`
			Size  int      `json:"size"`
			Items []bundle `json:"items"`
		}
		s.callREST(t, "GET", fmt.Sprintf("/v1/resource-bundles?page=%d&size=%d&search=%s", page, size,
			url.QueryEscape(search)), "", http.StatusOK, &list)
		if list.Kind != "ResourceBundleList" || list.Size != len(list.Items) {
			t.Errorf("list of kind %s says %d, has %d", list.Kind, list.Size, len(list.Items))
		}
		if all = append(all, list.Items...); len(list.Items) < size {
			return all
		}
	}
}

// The searches of the original's source client, character by character, and the results that its
// tests expect.
func TestSearchesOfTheOriginalsClientsFindTheirBundles(t *testing.T) {
	t.Parallel()
	s := sharedWorld(t).mosquitto
	s.consumer(t, "searched")
	src := s.startSource(t, "source-search", byGRPC, s.grpc, s.platform)
	for name, labels := range map[string]map[string]string{
		"both": {"app": "a", "env": "prod"}, "dev": {"app": "a", "env": "dev"}, "bare": {"app": "b"}, "none": nil,
	} {
		work := manifestWork(name, configMap(name, "1"))
		work.Labels = labels
		if _, err := src.at("searched").Create(t.Context(), work, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const mine = "source='source-search' and consumer_name='searched'"
	for search, want := range map[string]string{
		mine: "bare both dev none",
		mine + ` and payload->'metadata'->'labels'@>'{"app":"a"}'`:                   "both dev",
		mine + ` and payload->'metadata'->'labels'->>'env'in('prod','test')`:         "both",
		mine + ` and payload->'metadata'->'labels'->>'env'<>'dev'`:                   "both",
		mine + ` and payload->'metadata'->'labels'->>'env'<>null`:                    "both dev",
		mine + ` and payload->'metadata'->'labels'->>'app'='b'`:                      "bare",
		"source='source-search' and (consumer_name='searched' or consumer_name='b')": "bare both dev none",
		"source='nobody'": "",
	} {
		var found []string
		for _, b := range s.search(t, search) {
			var meta metav1.ObjectMeta
			if err := json.Unmarshal(b.Metadata, &meta); err != nil {
				t.Fatal(err)
			}
			found = append(found, meta.Name)
		}
		slices.Sort(found)
		if got := strings.Join(found, " "); got != want {
			t.Errorf("%s\nfinds %q, want %q", search, got, want)
		}
	}
	if status, body := s.call(t, "DELETE", "/v1/resource-bundles/"+uuid.NewString(),
		""); status != http.StatusNoContent {
		t.Errorf("deleting what is not there: %d %s", status, body)
	}
}

// Our agent's status as the original's server would receive it: every extension that the SDK's
// source codec needs, and the hash that the SDK computes.
func TestEventsOfOurAgentEqualThoseOfOCM(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s := w.mosquitto
	c := w.cluster(t, "agent-wire")
	s.consumer(t, c.name)
	o := w.observe(t, s.broker)
	src := s.startSource(t, "source-agent-wire", byGRPC, s.grpc, s.platform)
	made, err := src.at(c.name).Create(t.Context(), manifestWork("told", configMap("told", "1")),
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.startAgent(t, c)
	topic := "sources/maestro/consumers/agent-wire/agentevents"
	src.awaitCondition(c.name, "told", workv1.WorkApplied, metav1.ConditionTrue, 1)
	m := o.next(t, topic, "status.update_request")
	got := properties(t, m)
	for key, want := range map[string]string{
		"ce-specversion": "1.0", "ce-source": "agent-wire-agent", "ce-originalsource": "maestro",
		"ce-clustername": c.name,
		"ce-resourceid":  string(made.UID), "ce-resourceversion": "1",
	} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
	e, err := binding.ToEvent(t.Context(), cloudeventsmqtt.NewMessage(m))
	if err != nil {
		t.Fatal(err)
	}
	checkStatusHash(t, e)
	// The statuses as REST shows them, with the original's capitals.
	status, body := s.call(t, "GET", "/v1/resource-bundles/"+string(made.UID), "")
	if status != http.StatusOK || !strings.Contains(string(body), `"ObservedVersion":`) ||
		!strings.Contains(string(body), `"SequenceID":"`) {
		t.Errorf("%d %s", status, body)
	}
}
