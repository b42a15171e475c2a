package maestro

import (
	"atoll.dev/api/cloudevents"
	"atoll.dev/bus"
)

// fromProto reads an event of the gRPC form.
func fromProto(e *cloudevents.CloudEvent) (message, error) {
	ev, err := bus.FromProto(e)
	if err != nil {
		return message{}, invalid("%s", err)
	}
	m := messageOf(ev)
	if m.ext == nil {
		m.ext = map[string]string{}
	}
	return m, nil
}

// toProto writes an event in the gRPC form.
func toProto(m message) *cloudevents.CloudEvent { return m.event().Proto() }
