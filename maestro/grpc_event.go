package maestro

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
)

// Attributes of the gRPC form are keyed differently from the official
// protobuf format; see api/cloudevents.
const (
	attributePrefix   = "ce-"
	attributeType     = "contenttype"
	structuredContent = "application/cloudevents"
)

type attribute = cloudevents.CloudEvent_CloudEventAttributeValue

// fromProto reads an event of the gRPC form. Every attribute may be text,
// whatever type the contract gives it.
func fromProto(e *cloudevents.CloudEvent) (message, error) {
	if e == nil {
		return message{}, invalid("the request has no event")
	}
	if v := e.GetSpecVersion(); v != "1.0" {
		return message{}, invalid("the event's spec_version is %q; 1.0 is understood", v)
	}
	m := message{id: e.GetId(), source: e.GetSource(), kind: e.GetType(), ext: map[string]string{}}
	if m.id == "" || m.kind == "" {
		return m, invalid("the event has no id or no type")
	}
	for key, value := range e.GetAttributes() {
		name, ok := strings.CutPrefix(key, attributePrefix)
		text := attributeText(value)
		switch {
		case key == attributeType:
			if strings.HasPrefix(text, structuredContent) {
				return m, invalid("structured events are not understood; send attributes and data apart")
			}
		case !ok:
		case name == "time":
			t, err := time.Parse(time.RFC3339Nano, text)
			if err != nil {
				return m, invalid("attribute ce-time %q is not a time of RFC 3339", text)
			}
			m.time = t
		default:
			m.ext[name] = text
		}
	}
	switch data := e.GetData().(type) {
	case *cloudevents.CloudEvent_BinaryData:
		m.data = data.BinaryData
	case *cloudevents.CloudEvent_TextData:
		m.data = []byte(data.TextData)
	case *cloudevents.CloudEvent_ProtoData:
		return m, invalid("the event's data is a protobuf message; send JSON as binary_data")
	}
	return m, nil
}

func attributeText(v *attribute) string {
	switch a := v.GetAttr().(type) {
	case *cloudevents.CloudEvent_CloudEventAttributeValue_CeString:
		return a.CeString
	case *cloudevents.CloudEvent_CloudEventAttributeValue_CeInteger:
		return strconv.FormatInt(int64(a.CeInteger), 10)
	case *cloudevents.CloudEvent_CloudEventAttributeValue_CeBoolean:
		return strconv.FormatBool(a.CeBoolean)
	case *cloudevents.CloudEvent_CloudEventAttributeValue_CeTimestamp:
		return a.CeTimestamp.AsTime().Format(time.RFC3339Nano)
	case *cloudevents.CloudEvent_CloudEventAttributeValue_CeUri:
		return a.CeUri
	case *cloudevents.CloudEvent_CloudEventAttributeValue_CeUriRef:
		return a.CeUriRef
	case *cloudevents.CloudEvent_CloudEventAttributeValue_CeBytes:
		return string(a.CeBytes)
	}
	return ""
}

// toProto writes an event in the gRPC form.
func toProto(m message) *cloudevents.CloudEvent {
	e := &cloudevents.CloudEvent{
		Id: m.id, Source: m.source, SpecVersion: "1.0", Type: m.kind,
		Attributes: make(map[string]*attribute, len(m.ext)+2),
		Data:       &cloudevents.CloudEvent_BinaryData{BinaryData: m.data},
	}
	e.Attributes[attributeType] = textAttribute("application/json")
	if !m.time.IsZero() {
		e.Attributes[attributePrefix+"time"] = timeAttribute(m.time)
	}
	for name, value := range m.ext {
		a := textAttribute(value)
		switch name {
		case work.ExtResourceVersion:
			if n, err := strconv.ParseInt(value, 10, 32); err == nil {
				a = &attribute{Attr: &cloudevents.CloudEvent_CloudEventAttributeValue_CeInteger{CeInteger: int32(n)}}
			}
		case work.ExtDeletionTimestamp:
			if t := parseTime(value); t != nil {
				a = timeAttribute(*t)
			}
		}
		e.Attributes[attributePrefix+name] = a
	}
	return e
}

func textAttribute(s string) *attribute {
	return &attribute{Attr: &cloudevents.CloudEvent_CloudEventAttributeValue_CeString{CeString: s}}
}

func timeAttribute(t time.Time) *attribute {
	return &attribute{Attr: &cloudevents.CloudEvent_CloudEventAttributeValue_CeTimestamp{CeTimestamp: timestamppb.New(t)}}
}
