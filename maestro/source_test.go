package maestro

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/pause"
	"atoll.dev/maestro/wire"
	"atoll.dev/pki"
)

const testSource = "test-source"

// source publishes as a source does.
type source struct {
	t      testing.TB
	client cloudevents.CloudEventServiceClient
	name   string
}

func (i *instance) source() *source {
	return &source{t: i.t, client: i.dial(pki.ServiceName("platform-api")), name: testSource}
}

func configMap(name string, value any) string {
	return fmt.Sprintf(
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"default"},"data":{"value":"%v"}}`,
		name, value)
}

func textAttribute(s string) *cloudevents.CloudEvent_CloudEventAttributeValue {
	return &cloudevents.CloudEvent_CloudEventAttributeValue{
		Attr: &cloudevents.CloudEvent_CloudEventAttributeValue_CeString{CeString: s}}
}

func specData(manifests ...string) []byte {
	return []byte(`{"manifests":[` + strings.Join(manifests, ",") + `]}`)
}

// event makes a spec event.
func (s *source) event(kind string, consumer work.Consumer, id work.ID, version int64,
	data []byte) *cloudevents.CloudEvent {
	m := bus.Event{
		DataContentType: wire.JSONType, ID: uuid.NewString(), Source: s.name, Type: kind, Time: time.Now(), Data: data,
		Extensions: map[string]string{
			work.ExtClusterName: string(consumer), work.ExtResourceID: string(id), work.ExtResourceVersion: fmt.Sprint(version),
			work.ExtMetadata: `{"name":"name-of-` + string(id) + `","namespace":"` + string(consumer) + `","uid":"` +
				string(id) + `","labels":{"app":"test"}}`,
		},
	}
	if kind == work.SpecDelete {
		m.Extensions[work.ExtDeletionTimestamp] = time.Now().UTC().Format(time.RFC3339)
	}
	return wire.ToProto(m)
}

func (s *source) publish(e *cloudevents.CloudEvent) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := s.client.Publish(ctx, &cloudevents.PublishRequest{Event: e})
	return err
}

// send publishes an event again while the database is unavailable, as sources do: on a busy machine a
// request may wait too long for a connection. A later try may find the work that an earlier one created.
func (s *source) send(e *cloudevents.CloudEvent) error {
	start := time.Now()
	for tries := 1; ; tries++ {
		err := s.publish(e)
		switch code := status.Code(err); {
		case code == codes.AlreadyExists && tries > 1:
			return nil
		case code != codes.DeadlineExceeded && code != codes.Unavailable || time.Since(start) > patience:
			return err
		}
		pause.For(context.Background(), 50*time.Millisecond)
	}
}

func (s *source) create(consumer work.Consumer, id work.ID, value any) {
	s.t.Helper()
	if err := s.send(s.event(work.SpecCreate, consumer, id, 0, specData(configMap(string(id), value)))); err != nil {
		s.t.Fatalf("creating %s: %v", id, err)
	}
}

func (s *source) update(consumer work.Consumer, id work.ID, value any) {
	s.t.Helper()
	if err := s.send(s.event(work.SpecUpdate, consumer, id, 0, specData(configMap(string(id), value)))); err != nil {
		s.t.Fatalf("updating %s: %v", id, err)
	}
}

func (s *source) remove(consumer work.Consumer, id work.ID) {
	s.t.Helper()
	if err := s.send(s.event(work.SpecDelete, consumer, id, 0, nil)); err != nil {
		s.t.Fatalf("deleting %s: %v", id, err)
	}
}
