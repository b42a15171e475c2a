package bus

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// structuredPacket returns the packet of the event's structured form: one JSON object,
// as hyperfleet-broker writes it. Data with a JSON content type, or with none, is a
// member of the object; other data is in base64.
func (e Event) structuredPacket(topic string) (*packets.Publish, error) {
	p, err := e.packet(topic)
	if err != nil {
		return nil, err
	}
	body := []byte(`{"specversion":"` + SpecVersion + `"`)
	add := func(name, value string) {
		text, _ := json.Marshal(value) // encoding a string cannot fail
		body = append(append(append(append(body, `,"`...), name...), `":`...), text...)
	}
	optional := func(name, value string) {
		if value != "" {
			add(name, value)
		}
	}
	add("type", e.Type)
	add("source", e.Source)
	add("id", e.ID)
	optional("subject", e.Subject)
	if !e.Time.IsZero() {
		add("time", e.Time.UTC().Format(time.RFC3339Nano))
	}
	optional("datacontenttype", e.DataContentType)
	optional("dataschema", e.DataSchema)
	for _, name := range slices.Sorted(maps.Keys(e.Extensions)) {
		switch name {
		case "data", "specversion", "type", "source", "id", "subject", "time", "datacontenttype", "dataschema":
			return nil, fmt.Errorf("%w: extension %q is an attribute's name", ErrNotAnEvent, name)
		}
		add(name, e.Extensions[name])
	}
	switch {
	case len(e.Data) == 0:
	case e.DataContentType != "" && !strings.Contains(e.DataContentType, "json"):
		text, _ := json.Marshal(e.Data)
		body = append(append(body, `,"data_base64":`...), text...)
	case !json.Valid(e.Data):
		return nil, fmt.Errorf("%w: its data is no JSON", ErrNotAnEvent)
	default:
		body = append(append(body, `,"data":`...), e.Data...)
	}
	p.Payload = append(body, '}')
	p.Properties = &packets.Properties{ContentType: structuredType + "; charset=utf-8", User: e.withKeyProperty(nil)}
	return p, nil
}

// decodeStructured reads the JSON event format.
func decodeStructured(payload []byte) (Event, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(payload, &fields); err != nil {
		return Event{}, fmt.Errorf("%w: %w", ErrNotAnEvent, err)
	}
	raw, hasData := fields["data"]
	encoded, hasBase64 := fields["data_base64"]
	delete(fields, "data")
	delete(fields, "data_base64")
	if hasData && hasBase64 {
		return Event{}, fmt.Errorf("%w: both data and data_base64", ErrNotAnEvent)
	}
	attributes := make(map[string]string, len(fields))
	for name, value := range fields {
		switch value[0] {
		case 'n': // null: absent
		case '{', '[':
			return Event{}, fmt.Errorf("%w: attribute %q is not a scalar", ErrNotAnEvent, name)
		case '"':
			var s string
			if err := json.Unmarshal(value, &s); err != nil {
				return Event{}, fmt.Errorf("%w: attribute %q: %w", ErrNotAnEvent, name, err)
			}
			attributes[name] = s
		default:
			attributes[name] = string(value) // numbers and booleans, as they are written
		}
	}
	data := []byte(raw)
	switch kind := attributes["datacontenttype"]; {
	case hasBase64:
		if err := json.Unmarshal(encoded, &data); err != nil {
			return Event{}, fmt.Errorf("%w: data_base64: %w", ErrNotAnEvent, err)
		}
	case hasData && kind != "" && !strings.Contains(kind, "json"):
		var s string // text, in a JSON string
		if json.Unmarshal(raw, &s) == nil {
			data = []byte(s)
		}
	}
	return eventFromAttributes(attributes, "application/json", data)
}
