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

// SpecVersion is the version of CloudEvents that the bus speaks.
const SpecVersion = "1.0"

// Heartbeat is the type of the one event that may lack a source.
const Heartbeat = "io.open-cluster-management.cloudevents.heartbeat"

const (
	attributePrefix = "ce-"
	structuredType  = "application/cloudevents+json"

	// keyProperty is the MQTT user property of an event's Key, in both modes.
	keyProperty = "atoll-key"

	// maxString is what MQTT can say the length of.
	maxString = 65535
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

	// Key is not of CloudEvents: of those who share a subscription, the embedded
	// broker gives events of one topic and key to one, while there is no change
	// among them. Other brokers choose as they like.
	Key string
}

// Validate tells what CloudEvents 1.0 requires and the event lacks.
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
		if !text(v) {
			return fmt.Errorf("%w: attribute %.100q is not UTF-8 or holds NUL", ErrNotAnEvent, v)
		}
	}
	for name, v := range e.Extensions {
		if !extensionName(name) {
			return fmt.Errorf("%w: extension %q: use lower-case letters and digits", ErrNotAnEvent, name)
		}
		if !text(v) {
			return fmt.Errorf("%w: extension %q is not UTF-8 or holds NUL", ErrNotAnEvent, name)
		}
	}
	return nil
}

func text(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

func extensionName(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// publish gives the event's binary form: attributes as user properties, in a
// fixed order, and data as the payload.
func (e Event) publish(topic string) (*packets.Publish, error) {
	if err := e.Validate(); err != nil {
		return nil, err
	}
	if topic == "" || strings.ContainsAny(topic, "+#") || !text(topic) || len(topic) > maxString {
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
	user = e.keyed(user)
	// The codec would cut what MQTT cannot say the length of.
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

// Size is how many bytes a broker counts for the event on a topic, or a few
// more.
func (e Event) Size(topic string) (int, error) {
	p, err := e.publish(topic)
	if err != nil {
		return 0, err
	}
	return packetSize(p), nil
}

// keyed adds the property that carries the key.
func (e Event) keyed(user []packets.User) []packets.User {
	if e.Key == "" {
		return user
	}
	return append(user, packets.User{Key: keyProperty, Value: e.Key})
}

// decode reads an event in binary or in structured mode.
func decode(p *packets.Publish) (Event, error) {
	e, err := decodeMode(p)
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

func decodeMode(p *packets.Publish) (Event, error) {
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
