package bus

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
)

// Attributes of the gRPC form are keyed differently from the official
// protobuf format; see package cloudevents.
const attributeContentType = "contenttype"

type attribute = cloudevents.CloudEvent_CloudEventAttributeValue

// Proto returns the event's form on gRPC: a version is an integer, a time a
// timestamp, every other attribute text.
func (e Event) Proto() *cloudevents.CloudEvent {
	p := &cloudevents.CloudEvent{
		Id: e.ID, Source: e.Source, SpecVersion: SpecVersion, Type: e.Type,
		Attributes: make(map[string]*attribute, len(e.Extensions)+2),
		Data:       &cloudevents.CloudEvent_BinaryData{BinaryData: e.Data},
	}
	set := func(name, value string) {
		if value != "" {
			p.Attributes[attributePrefix+name] = textAttribute(value)
		}
	}
	p.Attributes[attributeContentType] = textAttribute(e.DataContentType)
	set("subject", e.Subject)
	set("dataschema", e.DataSchema)
	if !e.Time.IsZero() {
		p.Attributes[attributePrefix+"time"] = timeAttribute(e.Time)
	}
	for name, value := range e.Extensions {
		a := textAttribute(value)
		switch name {
		case work.ExtResourceVersion:
			if n, err := strconv.ParseInt(value, 10, 32); err == nil {
				a = &attribute{Attr: &cloudevents.CloudEvent_CloudEventAttributeValue_CeInteger{CeInteger: int32(n)}}
			}
		case work.ExtDeletionTimestamp:
			if t, err := time.Parse(time.RFC3339Nano, value); err == nil {
				a = timeAttribute(t)
			}
		}
		p.Attributes[attributePrefix+name] = a
	}
	return p
}

// FromProto reads an event from its form on gRPC: attributes and data, or one
// structured JSON document as data. It accepts text for every attribute, also where
// the contract has another type.
func FromProto(p *cloudevents.CloudEvent) (Event, error) {
	if p == nil {
		return Event{}, fmt.Errorf("%w: the request has no event", ErrNotAnEvent)
	}
	var data []byte
	switch d := p.GetData().(type) {
	case *cloudevents.CloudEvent_BinaryData:
		data = d.BinaryData
	case *cloudevents.CloudEvent_TextData:
		data = []byte(d.TextData)
	case *cloudevents.CloudEvent_ProtoData:
		return Event{}, fmt.Errorf("%w: its data is a protobuf message; send JSON as binary_data", ErrNotAnEvent)
	}
	contentType := attributeText(p.GetAttributes()[attributeContentType])
	if kind, _, _ := strings.Cut(contentType, ";"); strings.TrimSpace(strings.ToLower(kind)) == structuredType {
		return decodeStructured(data)
	}
	if v := p.GetSpecVersion(); v != SpecVersion {
		return Event{}, fmt.Errorf("%w: spec_version is %.20q; %s is understood", ErrNotAnEvent, v, SpecVersion)
	}
	e := Event{ID: p.GetId(), Source: p.GetSource(), Type: p.GetType(), DataContentType: contentType, Data: data,
		Extensions: make(map[string]string, len(p.GetAttributes()))}
	for key, value := range p.GetAttributes() {
		name, ok := strings.CutPrefix(key, attributePrefix)
		if !ok {
			continue // contenttype, or an unknown key
		}
		text := attributeText(value)
		switch name {
		case "time":
			t, err := time.Parse(time.RFC3339Nano, text)
			if err != nil {
				return e, fmt.Errorf("%w: ce-time %.40q is not a time of RFC 3339", ErrNotAnEvent, text)
			}
			e.Time = t
		case "subject":
			e.Subject = text
		case "dataschema":
			e.DataSchema = text
		default:
			e.Extensions[name] = text
		}
	}
	return e, e.Validate()
}

// attributeText returns an attribute of any type as text.
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

func textAttribute(s string) *attribute {
	return &attribute{Attr: &cloudevents.CloudEvent_CloudEventAttributeValue_CeString{CeString: s}}
}

func timeAttribute(t time.Time) *attribute {
	return &attribute{Attr: &cloudevents.CloudEvent_CloudEventAttributeValue_CeTimestamp{CeTimestamp: timestamppb.New(
		t)}}
}
