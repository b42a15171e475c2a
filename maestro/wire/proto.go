package wire

import (
	"atoll.dev/api/cloudevents"
	"atoll.dev/bus"
	"atoll.dev/maestro/apierror"
)

// FromProto reads an event of the gRPC form.
func FromProto(e *cloudevents.CloudEvent) (bus.Event, error) {
	ev, err := bus.FromProto(e)
	if err != nil {
		return bus.Event{}, apierror.Invalid("%s", err)
	}
	if ev.Extensions == nil {
		ev.Extensions = map[string]string{}
	}
	return ev, nil
}

// ToProto writes an event in the gRPC form.
func ToProto(m bus.Event) *cloudevents.CloudEvent { return m.Proto() }
