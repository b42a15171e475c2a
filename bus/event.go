package bus

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// SpecVersion is the version of CloudEvents that the bus speaks.
const SpecVersion = "1.0"

const (
	attributePrefix = "ce-"
	structuredType  = "application/cloudevents+json"
)

// ErrNotAnEvent is what every decoding error is.
var ErrNotAnEvent = errors.New("not a CloudEvent")

// Event is a CloudEvent. Extensions are lower-case names without the prefix
// "ce-" and keep empty values: an agent's spec resync has originalsource "".
type Event struct {
	ID              string
	Source          string
	Type            string
	Subject         string
	Time            time.Time // zero: absent
	DataContentType string
	DataSchema      string
	Extensions      map[string]string
	Data            []byte
}

// Validate tells what CloudEvents 1.0 requires and the event lacks.
func (e Event) Validate() error {
	switch {
	case e.ID == "":
		return fmt.Errorf("%w: no id", ErrNotAnEvent)
	case e.Type == "":
		return fmt.Errorf("%w: no type", ErrNotAnEvent)
	case e.Source == "":
		return fmt.Errorf("%w: no source", ErrNotAnEvent)
	}
	for name := range e.Extensions {
		if !extensionName(name) {
			return fmt.Errorf("%w: extension %q: use lower-case letters and digits", ErrNotAnEvent, name)
		}
	}
	return nil
}

func extensionName(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// publish gives the event's binary form: attributes as user properties, in a
// fixed order, and data as the payload.
func (e Event) publish(topic string) (*packets.Publish, error) {
	if err := e.Validate(); err != nil {
		return nil, err
	}
	user := make([]packets.User, 0, 6+len(e.Extensions))
	add := func(name, value string) { user = append(user, packets.User{Key: attributePrefix + name, Value: value}) }
	add("specversion", SpecVersion)
	add("id", e.ID)
	add("source", e.Source)
	add("type", e.Type)
	if e.Subject != "" {
		add("subject", e.Subject)
	}
	if !e.Time.IsZero() {
		add("time", e.Time.UTC().Format(time.RFC3339Nano))
	}
	if e.DataSchema != "" {
		add("dataschema", e.DataSchema)
	}
	for _, name := range slices.Sorted(maps.Keys(e.Extensions)) {
		add(name, e.Extensions[name])
	}
	return &packets.Publish{
		Topic: topic, QoS: 1, Payload: e.Data,
		Properties: &packets.Properties{ContentType: e.DataContentType, User: user},
	}, nil
}

// decode reads an event in binary or in structured mode.
func decode(p *packets.Publish) (Event, error) {
	var e Event
	if p.Properties == nil {
		return e, fmt.Errorf("%w: no properties", ErrNotAnEvent)
	}
	if kind, _, _ := strings.Cut(p.Properties.ContentType, ";"); strings.TrimSpace(strings.ToLower(kind)) == structuredType {
		return decodeStructured(p.Payload)
	}
	attributes := make(map[string]string, len(p.Properties.User))
	for _, u := range p.Properties.User {
		name, ok := strings.CutPrefix(strings.ToLower(u.Key), attributePrefix)
		if !ok {
			continue
		}
		if _, twice := attributes[name]; twice {
			return e, fmt.Errorf("%w: attribute %q twice", ErrNotAnEvent, name)
		}
		attributes[name] = u.Value
	}
	return fromAttributes(attributes, p.Properties.ContentType, p.Payload)
}

func fromAttributes(attributes map[string]string, contentType string, data []byte) (Event, error) {
	e := Event{DataContentType: contentType, Data: data}
	if v := attributes["specversion"]; v != SpecVersion {
		return e, fmt.Errorf("%w: specversion %q", ErrNotAnEvent, v)
	}
	for name, value := range attributes {
		switch name {
		case "specversion":
		case "id":
			e.ID = value
		case "source":
			e.Source = value
		case "type":
			e.Type = value
		case "subject":
			e.Subject = value
		case "dataschema":
			e.DataSchema = value
		case "datacontenttype":
			e.DataContentType = value
		case "time":
			t, err := time.Parse(time.RFC3339Nano, value)
			if err != nil {
				return e, fmt.Errorf("%w: time %q", ErrNotAnEvent, value)
			}
			e.Time = t
		default:
			if e.Extensions == nil {
				e.Extensions = make(map[string]string, len(attributes))
			}
			e.Extensions[name] = value
		}
	}
	return e, e.Validate()
}

// decodeStructured reads the JSON event format. data_base64 is left to those
// who send binary data, which nobody on this bus does.
func decodeStructured(payload []byte) (Event, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(payload, &fields); err != nil {
		return Event{}, fmt.Errorf("%w: %w", ErrNotAnEvent, err)
	}
	data := fields["data"]
	delete(fields, "data")
	if _, ok := fields["data_base64"]; ok {
		return Event{}, fmt.Errorf("%w: data_base64 is not supported", ErrNotAnEvent)
	}
	attributes := make(map[string]string, len(fields))
	for name, raw := range fields {
		var s string
		if json.Unmarshal(raw, &s) != nil {
			s = string(raw) // numbers and booleans, as they are written
		}
		attributes[name] = s
	}
	return fromAttributes(attributes, "application/json", data)
}
