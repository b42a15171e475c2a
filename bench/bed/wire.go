package bed

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/metadata"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/bus"
)

// Consumer returns the name of the i-th management cluster.
func Consumer(i int) string { return fmt.Sprintf("mc%d", i) }

// ID returns the id of the i-th work.
func ID(i int) string { return fmt.Sprintf("w%07d", i) }

// AgentTopic returns the topic to which a consumer's agent publishes.
func AgentTopic(consumer string) string {
	return bus.Topic{Source: "maestro", Consumer: work.Consumer(consumer), Kind: bus.AgentEvents}.String()
}

// Filler returns the random text with which Spec fills a work of about size bytes.
func (b *Bed) Filler(size int) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	filler := make([]byte, max(size-120, 1))
	for i := range filler {
		filler[i] = "abcdefghijklmnopqrstuvwxyz0123456789"[b.random.IntN(36)]
	}
	return string(filler)
}

// Spec makes a spec event of one ConfigMap of about size bytes. Its content is different each time.
func (b *Bed) Spec(kind, consumer, id string, size int) *cloudevents.CloudEvent {
	return SpecOf(kind, consumer, id, b.Filler(size))
}

// SpecOf makes a spec event of one ConfigMap that has the filler as its value.
func SpecOf(kind, consumer, id, filler string) *cloudevents.CloudEvent {
	text := func(s string) *cloudevents.CloudEvent_CloudEventAttributeValue {
		return &cloudevents.CloudEvent_CloudEventAttributeValue{
			Attr: &cloudevents.CloudEvent_CloudEventAttributeValue_CeString{CeString: s}}
	}
	return &cloudevents.CloudEvent{
		Id: uuid.NewString(), Source: Source, SpecVersion: "1.0", Type: kind,
		Attributes: map[string]*cloudevents.CloudEvent_CloudEventAttributeValue{
			"contenttype": text("application/json"), "ce-" + work.ExtResourceID: text(id),
			"ce-" + work.ExtClusterName:     text(consumer),
			"ce-" + work.ExtResourceVersion: text("0"),
			"ce-" + work.ExtMetadata: text(
				fmt.Sprintf(`{"name":"work-%s","namespace":%q,"uid":%q,"labels":{"app":"bench"}}`, id, consumer, id)),
		},
		Data: &cloudevents.CloudEvent_BinaryData{BinaryData: fmt.Appendf(
			nil,
			`{"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"cm-%s","namespace":"default"},`+
				`"data":{"value":%q}}]}`,
			id,
			filler,
		)},
	}
}

// Publish sends a source's event to the server, and returns when the server has accepted it.
func (b *Bed) Publish(ctx context.Context, e *cloudevents.CloudEvent) error {
	_, err := b.Events.Publish(ctx, &cloudevents.PublishRequest{Event: e})
	return err
}

// Stream subscribes to the statuses of the benchmark's works, until the bed is closed. It calls handle with each.
func (b *Bed) Stream(ctx context.Context, handle func(id string, e *cloudevents.CloudEvent)) error {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := b.Events.Subscribe(metadata.AppendToOutgoingContext(ctx), &cloudevents.SubscriptionRequest{
		Source: Source})
	if err == nil {
		_, err = stream.Header()
	}
	if err != nil {
		cancel()
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			e, err := stream.Recv()
			if err != nil {
				return
			}
			if e.GetType() != work.Heartbeat {
				handle(e.GetAttributes()["ce-"+work.ExtResourceID].GetCeString(), e)
			}
		}
	}()
	b.OnClose(func() error { cancel(); <-done; return nil })
	return nil
}

// AgentEvent makes an event of a consumer's agent.
func AgentEvent(consumer, kind string, data []byte) bus.Event {
	return bus.Event{
		ID: uuid.NewString(), Source: consumer +
			"-agent", Type: kind, Time: time.Now(), DataContentType: "application/json", Data: data,
		Extensions: map[string]string{work.ExtClusterName: consumer},
	}
}

// Status makes an agent's status of an applied and available work. Server and agent compare the hash, 64 hexadecimal
// digits.
func Status(consumer, id, generation, hash string, sequence int64) bus.Event {
	data := fmt.Appendf(
		nil,
		`{"conditions":[{"type":"Applied","status":"True","reason":"AppliedManifestWorkComplete",`+
			`"message":"Apply manifest work complete","observedGeneration":%s,"lastTransitionTime":"2026-01-01T00:00:00Z"},`+
			`{"type":"Available","status":"True","reason":"ResourcesAvailable","message":"All resources are available",`+
			`"observedGeneration":%s,"lastTransitionTime":"2026-01-01T00:00:00Z"}],`+
			`"resourceStatus":[{"resourceMeta":{"ordinal":0,"version":"v1","kind":"ConfigMap","resource":"configmaps",`+
			`"name":"cm","namespace":"default"},"statusFeedback":{"values":[{"name":"state","fieldValue":{"type":"String",`+
			`"string":%q}}]},`+
			`"conditions":[{"type":"Applied","status":"True","reason":"AppliedManifestComplete",`+
			`"message":"Apply manifest complete","lastTransitionTime":"2026-01-01T00:00:00Z"}]}]}`,
		generation,
		generation,
		hash,
	)
	return statusEvent(consumer, id, generation, hash, sequence, data)
}

// DeletedStatus makes an agent's status of a deleted work.
func DeletedStatus(consumer, id, generation, hash string, sequence int64) bus.Event {
	return statusEvent(consumer, id, generation, hash, sequence, fmt.Appendf(
		nil,
		`{"conditions":[{"type":%q,"status":"True","reason":%q,"message":%q,"lastTransitionTime":"2026-01-01T00:00:00Z"}]}`,
		work.ConditionDeleted,
		work.ReasonDeleted,
		fmt.Sprintf(work.MessageDeletedFormat, consumer),
	))
}

// statusEvent makes the event of a status.
func statusEvent(consumer, id, generation, hash string, sequence int64, data []byte) bus.Event {
	e := AgentEvent(consumer, work.StatusUpdate, data)
	for k, v := range map[string]string{
		work.ExtResourceID: id, work.ExtResourceVersion: generation, work.ExtOriginalSource: "maestro",
		work.ExtSequenceID: strconv.FormatInt(sequence, 10), work.ExtStatusHash: hash,
	} {
		e.Extensions[k] = v
	}
	return e
}
