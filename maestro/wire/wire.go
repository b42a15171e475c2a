// Package wire encodes bundles as CloudEvents for agents and sources, and decodes their CloudEvents.
//
// Only package maestro and its packages import it.
package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/meta"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/store"
)

// JSONType is the content type of all data.
const JSONType = "application/json"

const (
	MaxSource    = 256
	maxExtension = 64000 // MQTT has 16 bits for the length of a property, and the id replaces the name
)

// DecodeSpec reads a spec event of a source.
func DecodeSpec(m bus.Event) (bundle.Request, error) {
	req := bundle.Request{Record: bundle.Spec{
		EventID:     m.ID,
		Source:      m.Source,
		SpecVersion: "1.0",
		Type:        m.Type,
		ContentType: JSONType,
		Consumer:    work.Consumer(m.Extensions[work.ExtClusterName]),
		ID:          work.ID(m.Extensions[work.ExtResourceID]),
		LogTracing:  m.Extensions[work.ExtLogTracing],
	}}
	switch {
	case m.Source == "":
		return req, apierror.Invalid("the event has no source")
	case len(m.Source) > MaxSource:
		return req, apierror.Invalid(
			"the event's source has %d bytes, at most %d are possible",
			len(m.Source),
			MaxSource,
		)
	}
	for _, name := range []string{work.ExtMetadata, work.ExtLogTracing} {
		if n := len(m.Extensions[name]); n > maxExtension {
			return req, apierror.Invalid(
				"extension %s has %d bytes, at most %d are possible; leave out annotations",
				name,
				n,
				maxExtension,
			)
		}
	}
	if err := bundle.CheckID(req.Record.ID); err != nil {
		return req, err
	}
	if req.Record.Consumer == "" {
		return req, apierror.Invalid("extension %s is missing; it is the consumer's name", work.ExtClusterName)
	}
	text, present := m.Extensions[work.ExtResourceVersion]
	if !present {
		return req, apierror.Invalid(
			"extension %s is missing; 0 takes whatever version is there",
			work.ExtResourceVersion,
		)
	}
	var err error
	if req.Version, err = parseVersion(work.ExtResourceVersion, text); err != nil {
		return req, err
	}
	if text := m.Extensions[work.ExtIfMatch]; text != "" {
		if req.IfMatch, err = parseVersion(work.ExtIfMatch, text); err != nil {
			return req, err
		}
	}
	if !m.Time.IsZero() {
		t := m.Time.UTC()
		req.Record.Time = &t
	}
	if m.Type == work.SpecDelete {
		return req, nil // a deletion ignores its data
	}
	if req.Record.Metadata, err = bundle.CheckMetadata(m.Extensions[work.ExtMetadata]); err != nil {
		return req, err
	}
	if err := bundle.CheckData(m.Data); err != nil {
		return req, err
	}
	req.Record.Data = m.Data
	return req, nil
}

func parseVersion(name, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, apierror.Invalid("extension %s=%q is not a version", name, text)
	}
	return n, nil
}

// DecodeStatus reads a status event of an agent.
func DecodeStatus(topic work.Consumer, m bus.Event) (bundle.StatusEvent, error) {
	ev := bundle.StatusEvent{Topic: topic}
	ev.Record = bundle.Status{
		EventID:        m.ID,
		Source:         m.Source,
		SpecVersion:    "1.0",
		Type:           m.Type,
		ContentType:    JSONType,
		Consumer:       work.Consumer(m.Extensions[work.ExtClusterName]),
		ID:             work.ID(m.Extensions[work.ExtResourceID]),
		OriginalSource: m.Extensions[work.ExtOriginalSource],
		Sequence:       m.Extensions[work.ExtSequenceID],
		Hash:           m.Extensions[work.ExtStatusHash],
	}
	if err := bundle.CheckID(ev.Record.ID); err != nil {
		return ev, err
	}
	version, err := strconv.ParseInt(m.Extensions[work.ExtResourceVersion], 10, 64)
	if err != nil {
		return ev, fmt.Errorf("extension %s: %w", work.ExtResourceVersion, err)
	}
	ev.Record.Version = version
	if !m.Time.IsZero() {
		t := m.Time.UTC()
		ev.Record.Time = &t
	}
	var status work.Status
	if err := rest.DecodeJSON(m.Data, &status); err != nil {
		return ev, fmt.Errorf("reading a status: %w", err)
	}
	ev.Record.Data = m.Data
	if status.Bundle != nil {
		if ev.Record.Data, err = bundle.WithoutBundle(m.Data); err != nil {
			return ev, err
		}
	}
	ev.Deleted = meta.IsStatusConditionTrue(status.Conditions, work.ConditionDeleted)
	ev.ReceivedAt = parseTime(m.Extensions[work.ExtReceivedAt])
	ev.AppliedAt = parseTime(m.Extensions[work.ExtAppliedAt])
	return ev, nil
}

func parseTime(text string) *time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return nil
	}
	return &t
}

// EncodeSpec encodes the event with a bundle, or its deletion, for its agent. The event's
// source is this server, and the work's name is the bundle's id.
func EncodeSpec(d store.Document, sourceID string) (bus.Event, error) {
	spec, err := bundle.SpecOf(d)
	if err != nil {
		return bus.Event{}, err
	}
	m, err := specEvent(spec, d, sourceID)
	if err != nil {
		return bus.Event{}, err
	}
	if m.Data, err = canonical(spec.Data); err != nil {
		return bus.Event{}, fmt.Errorf("the data of bundle %s: %w", d.ID, err)
	}
	return m, nil
}

// specEvent encodes the event of a bundle without its data.
func specEvent(spec bundle.Spec, d store.Document, sourceID string) (bus.Event, error) {
	m := specHeader(spec, d, sourceID)
	metadata, err := bundle.WithName(spec.Metadata, work.ID(d.ID))
	if len(metadata) > 0 {
		m.Extensions[work.ExtMetadata] = string(metadata)
	}
	return m, err
}

// specHeader returns the event of a bundle without its data and metadata.
func specHeader(spec bundle.Spec, d store.Document, sourceID string) bus.Event {
	m := bus.Event{
		ID: spec.EventID, Source: sourceID, DataContentType: JSONType,
		Extensions: map[string]string{
			work.ExtClusterName:     d.Scope,
			work.ExtResourceID:      d.ID,
			work.ExtResourceVersion: strconv.FormatInt(d.Generation, 10),
		},
	}
	if spec.Time != nil {
		m.Time = *spec.Time
	}
	if spec.LogTracing != "" {
		m.Extensions[work.ExtLogTracing] = spec.LogTracing
	}
	switch {
	case d.DeletedAt != nil:
		// A deletion is an event of its own. It has all the data, so that an agent
		// that never had the work can delete its objects.
		m.Type, m.ID, m.Time = work.SpecDelete, uuid.NewString(), time.Now().UTC()
		m.Extensions[work.ExtDeletionTimestamp] = d.DeletedAt.UTC().Format(time.RFC3339)
	case d.Generation > 1:
		m.Type = work.SpecUpdate
	default:
		m.Type = work.SpecCreate
	}
	return m
}

// canonical returns JSON in the form of the original Maestro: without spaces, with sorted
// keys and unchanged numbers. PostgreSQL stores documents in another form.
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

// EncodeTombstone encodes the event that orders an agent to delete a work again, which it
// holds although its deletion was confirmed. The event has no data.
func EncodeTombstone(consumer work.Consumer, id work.ID, generation int64, sourceID string, now time.Time) bus.Event {
	return bus.Event{
		DataContentType: JSONType,
		ID:              uuid.NewString(),
		Source:          sourceID,
		Type:            work.SpecResyncResponse,
		Time:            now.UTC(),
		Extensions: map[string]string{
			work.ExtClusterName:       string(consumer),
			work.ExtResourceID:        string(id),
			work.ExtResourceVersion:   strconv.FormatInt(generation, 10),
			work.ExtDeletionTimestamp: now.UTC().Format(time.RFC3339),
		},
	}
}

// EncodeStatusResync encodes a request to an agent for the statuses that differ from the
// hashes. latest is the latest sequence of the agent's statuses that the server stored, or
// "": an agent that begins below it, because it lost its store and its clock is late,
// continues above it (docs/decisions/075).
func EncodeStatusResync(consumer work.Consumer, hashes []work.StatusHash, latest, sourceID string) (bus.Event, error) {
	m := StatusResyncHeader(consumer, latest, sourceID)
	var err error
	m.Data, err = json.Marshal(work.StatusHashes{Hashes: hashes})
	return m, err
}

// StatusResyncHeader returns the event of EncodeStatusResync without data.
func StatusResyncHeader(consumer work.Consumer, latest, sourceID string) bus.Event {
	m := bus.Event{
		DataContentType: JSONType,
		ID:              uuid.NewString(),
		Source:          sourceID,
		Type:            work.StatusResync,
		Time:            time.Now().UTC(),
		Extensions:      map[string]string{work.ExtClusterName: string(consumer)},
	}
	if latest != "" {
		m.Extensions[work.ExtSequenceID] = latest
	}
	return m
}

// EncodeStatus encodes the status of a bundle for its source: the agent's last status event
// with the spec added, or the removal of the bundle. ok is false when the bundle has no
// status, or one of an older generation.
func EncodeStatus(c *store.Change) (m bus.Event, ok bool, err error) {
	spec, status, err := bundle.RecordsOf(c)
	if err != nil {
		return m, false, err
	}
	d := c.Document
	if !d.Removed && (status.IsEmpty() || status.Version != d.Generation) {
		return m, false, nil
	}
	m, err = encodeStatus(d, spec, status)
	return m, err == nil, err
}

// EncodeRemoval encodes the removal of a bundle for its source when only its tombstone is left: version is the last
// one that the source saw, and at the time of the removal.
func EncodeRemoval(consumer work.Consumer, id work.ID, version int64, at time.Time) (bus.Event, error) {
	d := store.Document{Kind: bundle.Kind, ID: string(id), Scope: string(consumer), Generation: version, UpdatedAt: at,
		Removed: true}
	return encodeStatus(d, bundle.Spec{Data: json.RawMessage(`{"manifests":[]}`)}, bundle.Status{})
}

// encodeStatus encodes the status event of a bundle for its source.
func encodeStatus(d store.Document, spec bundle.Spec, status bundle.Status) (m bus.Event, err error) {
	var sd bundle.StatusData
	if !status.IsEmpty() {
		if err := json.Unmarshal(status.Data, &sd); err != nil {
			return m, fmt.Errorf("reading the status of bundle %s: %w", d.ID, err)
		}
		if err := sd.ShowVersions(status.Offset); err != nil {
			return m, fmt.Errorf("reading the conditions of bundle %s: %w", d.ID, err)
		}
	}
	if d.Removed && !sd.Deleted() {
		gone, err := json.Marshal(bundle.DeletedCondition(work.Consumer(d.Scope), d.UpdatedAt))
		if err != nil {
			return m, err
		}
		sd.Conditions = append(sd.Conditions, gone)
	}
	sd.Bundle = spec.Data
	m = bus.Event{
		DataContentType: JSONType, ID: uuid.NewString(), Source: status.Source, Type: status.Type, Time: d.UpdatedAt,
		Extensions: map[string]string{
			work.ExtClusterName:     d.Scope,
			work.ExtResourceID:      d.ID,
			work.ExtResourceVersion: strconv.FormatInt(spec.VersionAt(d.Generation), 10),
			work.ExtOriginalSource:  status.OriginalSource,
			work.ExtSequenceID:      status.Sequence,
		},
	}
	if m.Source == "" { // removed before its agent reported a status
		m.Source, m.Type = d.Scope+"-agent", work.StatusUpdate
	}
	if m.Extensions[work.ExtSequenceID] == "" {
		m.Extensions[work.ExtSequenceID] = "0"
	}
	if status.Hash != "" {
		m.Extensions[work.ExtStatusHash] = status.Hash
	}
	metadata, err := bundle.RowMetadata(spec.Metadata, d)
	if err != nil {
		return m, err
	}
	if len(metadata) > 0 {
		m.Extensions[work.ExtMetadata] = string(metadata)
	}
	m.Data, err = bundle.Marshal(sd)
	return m, err
}
