package bus

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"
)

func TestEventsSurviveTheWire(t *testing.T) {
	for name, e := range map[string]Event{
		"all": {ID: "1", Source: "s", Type: "t", Subject: "sub", Time: time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC),
			DataContentType: "application/json",
			DataSchema:      "urn:x", Extensions: map[string]string{"originalsource": "",
				"sequenceid": "9"}, Data: []byte("{}")},
		"least":     {ID: "1", Source: "s", Type: "t"},
		"heartbeat": {ID: "1", Type: Heartbeat},
		"tombstone": {ID: "1", Source: "maestro", Type: "t", Extensions: map[string]string{
			"deletiontimestamp": "2026-01-02T03:04:05Z"}},
	} {
		p, err := e.packet("a/b")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := decode(p)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(e, got); diff != "" {
			t.Errorf("%s (-sent +received):\n%s", name, diff)
		}
	}
}

func TestAnUnencodableEventIsAnError(t *testing.T) {
	ok := Event{ID: "1", Source: "s", Type: "t"}
	with := func(name, value string) Event {
		e := ok
		e.Extensions = map[string]string{name: value}
		return e
	}
	for name, c := range map[string]struct {
		topic string
		event Event
		want  error
	}{
		"no id":              {"a", Event{Source: "s", Type: "t"}, ErrNotAnEvent},
		"no source":          {"a", Event{ID: "1", Type: "t"}, ErrNotAnEvent},
		"no type":            {"a", Event{ID: "1", Source: "s"}, ErrNotAnEvent},
		"bad extension":      {"a", with("Bad-Name", "x"), ErrNotAnEvent},
		"long extension":     {"a", with("metadata", strings.Repeat("x", maxString+1)), ErrTooLarge},
		"NUL":                {"a", with("metadata", "a\x00"), ErrNotAnEvent},
		"not UTF-8":          {"a", with("metadata", "\xff"), ErrNotAnEvent},
		"wildcard in topic":  {"a/+/b", ok, ErrBadTopic},
		"no topic":           {"", ok, ErrBadTopic},
		"NUL in topic":       {"a\x00", ok, ErrBadTopic},
		"everything at once": {"#", Event{}, ErrNotAnEvent},
	} {
		if _, err := c.event.packet(c.topic); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestStructuredEvents(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want *Event // nil: refused
	}{
		"scalars": {
			`{"specversion":"1.0","id":"1","source":"s","type":"t","n":1,"b":true,"gone":null,"empty":"","data":{"a":[1]}}`,
			&Event{ID: "1", Source: "s", Type: "t", DataContentType: "application/json", Extensions: map[string]string{
				"n": "1", "b": "true", "empty": ""}, Data: []byte(`{"a":[1]}`)}},
		"base64": {
			`{"specversion":"1.0","id":"1","source":"s","type":"t","datacontenttype":"application/octet-stream",` +
				`"data_base64":"AAE="}`,
			&Event{ID: "1", Source: "s", Type: "t", DataContentType: "application/octet-stream", Data: []byte{0, 1}}},
		"text": {`{"specversion":"1.0","id":"1","source":"s","type":"t","datacontenttype":"text/plain","data":"hello"}`,
			&Event{ID: "1", Source: "s", Type: "t", DataContentType: "text/plain", Data: []byte("hello")}},
		"object attribute": {`{"specversion":"1.0","id":"1","source":"s","type":"t","x":{}}`, nil},
		"two datas": {`{"specversion":"1.0","id":"1","source":"s","type":"t","data":1,"data_base64":"AAE="}`,
			nil},
		"bad base64":  {`{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"!"}`, nil},
		"old version": {`{"specversion":"0.3","id":"1","source":"s","type":"t"}`, nil},
		"bad time":    {`{"specversion":"1.0","id":"1","source":"s","type":"t","time":"yesterday"}`, nil},
		"no JSON":     {`{`, nil},
		"no object":   {`[]`, nil},
	} {
		got, err := decode(&packets.Publish{Payload: []byte(c.body), Properties: &packets.Properties{
			ContentType: structuredType}})
		switch {
		case c.want == nil && !errors.Is(err, ErrNotAnEvent):
			t.Errorf("%s: %+v, %v", name, got, err)
		case c.want != nil && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != nil:
			if diff := cmp.Diff(*c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
}
