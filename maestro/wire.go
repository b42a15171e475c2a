package maestro

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// message is a CloudEvent as MQTT and gRPC carry it: extensions are text.
type message struct {
	id, source, kind string
	time             time.Time // zero: none
	ext              map[string]string
	data             []byte
}

func (m message) event() bus.Event {
	return bus.Event{ID: m.id, Source: m.source, Type: m.kind, Time: m.time, DataContentType: "application/json",
		Extensions: m.ext, Data: m.data}
}

func messageOf(e bus.Event) message {
	return message{id: e.ID, source: e.Source, kind: e.Type, time: e.Time, ext: e.Extensions, data: e.Data}
}

func (s *Server) specTopic(consumer string) string {
	return s.opts.Topics.SourceEvents.For(consumer).String()
}

// consumerOf returns the consumer whose topic an event came on.
func (s *Server) consumerOf(topic string) (string, bool) {
	t, ok := s.opts.Topics.AgentEvents.Match(topic)
	if !ok && s.opts.Topics.AgentBroadcast.Kind != "" {
		t, ok = s.opts.Topics.AgentBroadcast.Match(topic)
	}
	return t.Consumer, ok
}

// afterwards is what a message may grow by: as a deletion, as an answer to a
// resync, with a higher generation.
const afterwards = 256

// fits refuses a bundle that the broker would not take: it would be stored, and
// never arrive.
func (s *Server) fits(r specRecord) error {
	if s.bus == nil || s.bus.Limit() == 0 {
		return nil
	}
	spec, err := marshal(r)
	if err != nil {
		return err
	}
	m, err := encodeSpec(store.Document{ID: r.ID, Scope: r.Consumer, Spec: spec, Generation: 1}, s.opts.SourceID, true)
	if err != nil {
		return err
	}
	size, err := m.event().Size(s.specTopic(r.Consumer))
	if err != nil {
		return invalid("the bundle cannot be a message to its agent: %s", err)
	}
	if limit := s.bus.Limit(); size+afterwards > limit {
		return invalid(
			"the bundle takes %d bytes as a message to its agent, and the message broker takes %d; make it smaller, "+
				"or make several of it", size+afterwards, limit)
	}
	return nil
}

const (
	maxSource    = 256
	maxExtension = 64000 // MQTT counts a property in 16 bits, and the id takes the place of the name
)

// decodeSpec reads a spec event of a source.
func decodeSpec(m message) (specRequest, error) {
	req := specRequest{record: specRecord{
		EventID: m.id, Source: m.source, SpecVersion: "1.0", Type: m.kind, ContentType: "application/json",
		Consumer: m.ext[work.ExtClusterName], ID: m.ext[work.ExtResourceID], LogTracing: m.ext[work.ExtLogTracing],
	}}
	switch {
	case m.source == "":
		return req, invalid("the event has no source")
	case len(m.source) > maxSource:
		return req, invalid("the event's source has %d bytes, at most %d are possible", len(m.source), maxSource)
	}
	for _, name := range []string{work.ExtMetadata, work.ExtLogTracing} {
		if n := len(m.ext[name]); n > maxExtension {
			return req, invalid("extension %s has %d bytes, at most %d are possible; leave out annotations", name, n,
				maxExtension)
		}
	}
	if err := checkBundleID(req.record.ID); err != nil {
		return req, err
	}
	if req.record.Consumer == "" {
		return req, invalid("extension %s is missing; it is the consumer's name", work.ExtClusterName)
	}
	text, present := m.ext[work.ExtResourceVersion]
	if !present {
		return req, invalid("extension %s is missing; 0 takes whatever version is there", work.ExtResourceVersion)
	}
	var err error
	if req.version, err = parseVersion(work.ExtResourceVersion, text); err != nil {
		return req, err
	}
	if text := m.ext[work.ExtIfMatch]; text != "" {
		if req.ifMatch, err = parseVersion(work.ExtIfMatch, text); err != nil {
			return req, err
		}
	}
	if !m.time.IsZero() {
		t := m.time.UTC()
		req.record.Time = &t
	}
	if m.kind == work.SpecDelete {
		return req, nil // its data, if any, changes nothing
	}
	if req.record.Metadata, err = checkMetadata(m.ext[work.ExtMetadata]); err != nil {
		return req, err
	}
	if _, err := checkBundle(m.data); err != nil {
		return req, err
	}
	req.record.Data = m.data
	return req, nil
}

func parseVersion(name, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, invalid("extension %s=%q is not a version", name, text)
	}
	return n, nil
}

// decodeStatus reads a status event of an agent.
func decodeStatus(topic string, m message) (statusEvent, error) {
	ev := statusEvent{topic: topic}
	ev.record = statusRecord{
		EventID: m.id, Source: m.source, SpecVersion: "1.0", Type: m.kind, ContentType: "application/json",
		Consumer: m.ext[work.ExtClusterName], ID: m.ext[work.ExtResourceID], OriginalSource: m.ext[work.ExtOriginalSource],
		Sequence: m.ext[work.ExtSequenceID], Hash: m.ext[work.ExtStatusHash],
	}
	if err := checkBundleID(ev.record.ID); err != nil {
		return ev, err
	}
	version, err := strconv.ParseInt(m.ext[work.ExtResourceVersion], 10, 64)
	if err != nil {
		return ev, fmt.Errorf("extension %s: %w", work.ExtResourceVersion, err)
	}
	ev.record.Version = version
	if !m.time.IsZero() {
		t := m.time.UTC()
		ev.record.Time = &t
	}
	var shape work.Status
	if err := rest.DecodeJSON(m.data, &shape); err != nil {
		return ev, fmt.Errorf("reading a status: %w", err)
	}
	var data *statusData
	if ev.record.Data, data, err = withoutBundle(m.data); err != nil {
		return ev, err
	}
	ev.deleted = data.deleted()
	ev.receivedAt = parseTime(m.ext[work.ExtReceivedAt])
	ev.appliedAt = parseTime(m.ext[work.ExtAppliedAt])
	return ev, nil
}

func parseTime(text string) *time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return nil
	}
	return &t
}

// encodeSpec makes the event that brings a bundle, or its deletion, to its
// agent. The source becomes this server, the name the id.
func encodeSpec(d store.Document, sourceID string, response bool) (message, error) {
	spec, err := specOf(d)
	if err != nil {
		return message{}, err
	}
	metadata, err := withName(spec.Metadata, d.ID)
	if err != nil {
		return message{}, err
	}
	data, err := canonical(spec.Data)
	if err != nil {
		return message{}, fmt.Errorf("the data of bundle %s: %w", d.ID, err)
	}
	m := message{
		id: spec.EventID, source: sourceID, data: data,
		ext: map[string]string{
			work.ExtClusterName:     d.Scope,
			work.ExtResourceID:      d.ID,
			work.ExtResourceVersion: strconv.FormatInt(d.Generation, 10),
		},
	}
	if spec.Time != nil {
		m.time = *spec.Time
	}
	if len(metadata) > 0 {
		m.ext[work.ExtMetadata] = string(metadata)
	}
	if spec.LogTracing != "" {
		m.ext[work.ExtLogTracing] = spec.LogTracing
	}
	switch {
	case d.DeletedAt != nil:
		// A deletion is an event of its own; it carries all the data, so that
		// an agent that never had the work knows how to delete it.
		m.kind, m.id, m.time = work.SpecDelete, uuid.NewString(), time.Now().UTC()
		m.ext[work.ExtDeletionTimestamp] = d.DeletedAt.UTC().Format(time.RFC3339)
	case d.Generation > 1:
		m.kind = work.SpecUpdate
	default:
		m.kind = work.SpecCreate
	}
	if response {
		m.kind = work.SpecResyncResponse
	}
	return m, nil
}

// canonical writes JSON as the original does: without spaces, keys in order,
// numbers as they were. PostgreSQL keeps documents in a form of its own.
func canonical(data []byte) ([]byte, error) {
	if len(data) == 0 {
		return data, nil
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// encodeBuried makes the event that tells an agent to delete a work that it
// holds although its deletion was confirmed before. There is no data any more.
func encodeBuried(consumer string, h held, version int64, sourceID string, now time.Time) message {
	return message{
		id: uuid.NewString(), source: sourceID, kind: work.SpecResyncResponse, time: now.UTC(),
		ext: map[string]string{
			work.ExtClusterName:       consumer,
			work.ExtResourceID:        h.id,
			work.ExtResourceVersion:   strconv.FormatInt(max(h.generation, version), 10),
			work.ExtDeletionTimestamp: now.UTC().Format(time.RFC3339),
		},
	}
}

// encodeStatusResync asks an agent for the statuses that differ.
func encodeStatusResync(consumer string, hashes []work.StatusHash, sourceID string) (message, error) {
	data, err := json.Marshal(work.StatusHashes{Hashes: hashes})
	return message{
		id: uuid.NewString(), source: sourceID, kind: work.StatusResync, time: time.Now().UTC(),
		ext:  map[string]string{work.ExtClusterName: consumer},
		data: data,
	}, err
}

// encodeStatus makes the event that tells a source about its bundle: the
// agent's last one, with the spec filled in. ok is false when there is nothing
// to tell: no status yet, or one of an older generation.
func encodeStatus(c *store.Change) (m message, ok bool, err error) {
	spec, status, err := recordsOf(c)
	if err != nil {
		return m, false, err
	}
	d := c.Document
	if !d.Removed && (status.empty() || status.Version != d.Generation) {
		return m, false, nil
	}
	var sd statusData
	if !status.empty() {
		if err := json.Unmarshal(status.Data, &sd); err != nil {
			return m, false, fmt.Errorf("reading the status of bundle %s: %w", d.ID, err)
		}
		if err := sd.showVersions(status.Offset); err != nil {
			return m, false, fmt.Errorf("reading the conditions of bundle %s: %w", d.ID, err)
		}
	}
	if d.Removed && !sd.deleted() {
		gone, err := json.Marshal(deletedCondition(d.Scope, d.UpdatedAt))
		if err != nil {
			return m, false, err
		}
		sd.Conditions = append(sd.Conditions, gone)
	}
	sd.Bundle = spec.Data
	m = message{
		id: uuid.NewString(), source: status.Source, kind: status.Type, time: d.UpdatedAt,
		ext: map[string]string{
			work.ExtClusterName:     d.Scope,
			work.ExtResourceID:      d.ID,
			work.ExtResourceVersion: strconv.FormatInt(spec.version(d.Generation), 10),
			work.ExtOriginalSource:  status.OriginalSource,
			work.ExtSequenceID:      status.Sequence,
		},
	}
	if m.source == "" { // gone before its agent ever reported
		m.source, m.kind = d.Scope+"-agent", work.StatusUpdate
	}
	if m.ext[work.ExtSequenceID] == "" {
		m.ext[work.ExtSequenceID] = "0"
	}
	if status.Hash != "" {
		m.ext[work.ExtStatusHash] = status.Hash
	}
	metadata, err := rowMetadata(spec.Metadata, d)
	if err != nil {
		return m, false, err
	}
	if len(metadata) > 0 {
		m.ext[work.ExtMetadata] = string(metadata)
	}
	m.data, err = marshal(sd)
	return m, err == nil, err
}
