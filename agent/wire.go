package agent

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"atoll.dev/api/work"
	"atoll.dev/bus"
)

// wire turns messages into the core's events and back.
type wire struct {
	consumer work.Consumer
	source   string
	now      func() time.Time
}

// unwantedError is an event that is none of ours; it is dropped.
type unwantedError struct{ why string }

func (e unwantedError) Error() string { return e.why }

// decode turns a message of the server into an event of the core. It puts ack into an
// event that the core acknowledges later; the caller acknowledges all others at once.
func (w wire) decode(m bus.Event, ack func()) (event, error) {
	// + comes by a broadcast
	if c := m.Extensions[work.ExtClusterName]; c != "" && work.Consumer(c) != w.consumer && c != bus.AllConsumers {
		return nil, unwantedError{fmt.Sprintf("an event for cluster %q", c)}
	}
	switch m.Type {
	case work.SpecCreate, work.SpecUpdate, work.SpecDelete, work.SpecResyncResponse:
		generation, err := strconv.ParseInt(orZero(m.Extensions[work.ExtResourceVersion]), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the event's %s: %w", work.ExtResourceVersion, err)
		}
		s, err := decodeSpec(spec{ID: work.ID(m.Extensions[work.ExtResourceID]), Generation: generation, Source: m.Source,
			Metadata: m.Extensions[work.ExtMetadata], Life: m.Extensions[work.ExtLife], Received: w.now(),
			Deleting: m.Type == work.SpecDelete || m.Extensions[work.ExtDeletionTimestamp] != ""}, m.Data)
		if err != nil {
			return nil, err
		}
		return evSpec{s, ack}, nil
	case work.StatusResync:
		var list work.StatusHashes
		if err := json.Unmarshal(m.Data, &list); err != nil {
			return nil, fmt.Errorf("a status resync: %w", err)
		}
		return evStatusResync{list.Hashes, parseSequence(m.Extensions[work.ExtSequenceID])}, nil
	case work.ServerDigest:
		var a work.DigestAnswer
		if err := json.Unmarshal(m.Data, &a); err != nil {
			return nil, fmt.Errorf("a digest: %w", err)
		}
		return evDigest{a}, nil
	case work.ServerSpecs:
		var wanted work.SpecsWanted
		if err := json.Unmarshal(m.Data, &wanted); err != nil {
			return nil, fmt.Errorf("a request for works: %w", err)
		}
		return evSpecsRequested{wanted.IDs}, nil
	}
	return nil, unwantedError{fmt.Sprintf("an event of type %q", m.Type)}
}

func orZero(s string) string {
	if s == "" {
		return "0"
	}
	return s
}

func (w wire) event(kind string, data any) (bus.Event, error) {
	m := bus.Event{
		ID: uuid.NewString(), Source: w.source, Type: kind, Time: w.now().UTC(), DataContentType: "application/json",
		Extensions: map[string]string{work.ExtClusterName: string(w.consumer)},
	}
	var err error
	m.Data, err = json.Marshal(data)
	return m, err
}

// resync returns a request for all specs that are newer than the known versions.
func (w wire) resync(known []work.SpecVersion) (bus.Event, error) {
	m, err := w.event(work.SpecResync, work.SpecVersions{Versions: known})
	m.Extensions[work.ExtOriginalSource] = "" // of every source; the attribute must be there
	m.Extensions[work.ExtDigests] = "1"
	return m, err
}

// seen returns the heartbeat event of the agent, with the report of hosting unless that is nil.
func (w wire) seen(hosting *work.HostingReport) (bus.Event, error) {
	return w.event(work.Seen, work.SeenData{Hosting: hosting})
}

// status renders a status event.
func (w wire) status(ev *statusEvent) (bus.Event, error) {
	kind := work.StatusUpdate
	if ev.response {
		kind = work.StatusResyncResponse
	}
	m, err := w.event(kind, ev.status)
	if err != nil {
		return m, err
	}
	m.Extensions[work.ExtResourceID] = string(ev.id)
	m.Extensions[work.ExtResourceVersion] = strconv.FormatInt(ev.version, 10)
	m.Extensions[work.ExtOriginalSource] = ev.spec.Source
	m.Extensions[work.ExtSequenceID] = formatSequence(ev.seq)
	m.Extensions[work.ExtStatusHash] = ev.hash
	if ev.spec.Metadata != "" {
		m.Extensions[work.ExtMetadata] = ev.spec.Metadata
	}
	if ev.version == ev.spec.Generation && !ev.spec.Received.IsZero() {
		m.Extensions[work.ExtReceivedAt] = ev.spec.Received.UTC().Format(time.RFC3339Nano)
	}
	if !ev.applied.IsZero() {
		m.Extensions[work.ExtAppliedAt] = ev.applied.UTC().Format(time.RFC3339Nano)
	}
	return m, nil
}
