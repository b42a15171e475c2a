package bus

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/eclipse/paho.golang/packets"
)

// SpecVersion is the version of CloudEvents on the bus.
const SpecVersion = "1.0"

// Heartbeat is the type of the one event that may lack a source.
const Heartbeat = "io.open-cluster-management.cloudevents.heartbeat"

const (
	attributePrefix = "ce-"
	structuredType  = "application/cloudevents+json"

	// keyProperty is the MQTT user property of an event's Key, in both modes.
	keyProperty = "atoll-key"

	// maxString is the length limit of a string in MQTT, in bytes.
	maxString = 65535
)

// ErrNotAnEvent is wrapped by every decoding error.
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

	// Key is not part of CloudEvents. The embedded broker sends all events of one topic
	// and key to the same client of a shared subscription, as long as the same clients
	// share it. Other brokers select a client for each event.
	Key string
}

// Validate returns an error when the event breaks a rule of CloudEvents 1.0 or cannot be
// encoded in MQTT.
func (e Event) Validate() error {
	switch {
	case e.ID == "":
		return fmt.Errorf("%w: no id", ErrNotAnEvent)
	case e.Type == "":
		return fmt.Errorf("%w: no type", ErrNotAnEvent)
	case e.Source == "" && e.Type != Heartbeat:
		return fmt.Errorf("%w: no source", ErrNotAnEvent)
	}
	for _, v := range []string{e.ID, e.Source, e.Type, e.Subject, e.DataContentType, e.DataSchema, e.Key} {
		if !isText(v) {
			return fmt.Errorf("%w: attribute %.100q is not UTF-8 or holds NUL", ErrNotAnEvent, v)
		}
	}
	for name, v := range e.Extensions {
		if !isExtensionName(name) {
			return fmt.Errorf("%w: extension %q: use lower-case letters and digits", ErrNotAnEvent, name)
		}
		if !isText(v) {
			return fmt.Errorf("%w: extension %q is not UTF-8 or holds NUL", ErrNotAnEvent, name)
		}
	}
	return nil
}

// isText reports whether s can be an MQTT string.
func isText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// isExtensionName reports whether CloudEvents allows s as the name of an extension.
func isExtensionName(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// packet returns the PUBLISH packet of the event's binary form: attributes as user properties,
// in a fixed order, and data as the payload. It sends nothing.
func (e Event) packet(topic string) (*packets.Publish, error) {
	if err := e.Validate(); err != nil {
		return nil, err
	}
	if topic == "" || strings.ContainsAny(topic, "+#") || !isText(topic) || len(topic) > maxString {
		return nil, fmt.Errorf("%w: %q is no name to publish to", ErrBadTopic, topic)
	}
	user := make([]packets.User, 0, 7+len(e.Extensions))
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
	user = e.withKeyProperty(user)
	// The codec would truncate longer strings silently.
	for _, u := range append(user, packets.User{Key: "datacontenttype", Value: e.DataContentType}) {
		if len(u.Key) > maxString || len(u.Value) > maxString {
			return nil, fmt.Errorf("%w: attribute %.100s has %d bytes, the limit is %d", ErrTooLarge, u.Key,
				len(u.Value), maxString)
		}
	}
	return &packets.Publish{
		Topic: topic, QoS: 1, Payload: e.Data,
		Properties: &packets.Properties{ContentType: e.DataContentType, User: user},
	}, nil
}

// Size returns an upper bound of the event's encoded size on a topic, a few bytes above
// the size that a broker counts.
func (e Event) Size(topic string) (int, error) {
	p, err := e.packet(topic)
	if err != nil {
		return 0, err
	}
	return packetSize(p), nil
}

// withKeyProperty adds the user property with the event's key, if it has one.
func (e Event) withKeyProperty(user []packets.User) []packets.User {
	if e.Key == "" {
		return user
	}
	return append(user, packets.User{Key: keyProperty, Value: e.Key})
}

// decode reads an event with its Key, and validates it.
func decode(p *packets.Publish) (Event, error) {
	e, err := decodeByMode(p)
	if err != nil {
		return e, err
	}
	for _, u := range p.Properties.User {
		if u.Key == keyProperty {
			e.Key = u.Value
		}
	}
	return e, e.Validate()
}

// decodeByMode reads an event in binary or structured mode, as its content type says.
func decodeByMode(p *packets.Publish) (Event, error) {
	var e Event
	if p.Properties == nil {
		return e, fmt.Errorf("%w: no properties", ErrNotAnEvent)
	}
	if kind, _, _ := strings.Cut(p.Properties.ContentType, ";"); strings.TrimSpace(
		strings.ToLower(kind)) == structuredType {
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
	return eventFromAttributes(attributes, p.Properties.ContentType, p.Payload)
}

// eventFromAttributes makes an event of its attributes, by name, and its data.
func eventFromAttributes(attributes map[string]string, contentType string, data []byte) (Event, error) {
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
