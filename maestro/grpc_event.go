package maestro

import (
	"atoll.dev/api/cloudevents"
	"atoll.dev/bus"
)

// fromProto reads an event of the gRPC form.
func fromProto(e *cloudevents.CloudEvent) (bus.Event, error) {
	ev, err := bus.FromProto(e)
	if err != nil {
		return bus.Event{}, invalid("%s", err)
	}
	m := ev
	if m.Extensions == nil {
		m.Extensions = map[string]string{}
	}
	return m, nil
}

// toProto writes an event in the gRPC form.
func toProto(m bus.Event) *cloudevents.CloudEvent { return m.Proto() }
