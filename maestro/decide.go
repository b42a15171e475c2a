package maestro

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"atoll.dev/internal/jsonvalue"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// specRequest is a spec event of a source, checked for form.
type specRequest struct {
	record  specRecord
	version int64 // resourceversion: 0 takes whatever is there
	ifMatch int64 // atollifmatch: 0 likewise

	// anySource lets a source change what another made, as the original does.
	anySource bool
}

// decideUpdate applies an update to the bundle as it is. It leaves d alone
// when the content is equal: neither the event's id nor its time are content,
// so a source may apply the same work as often as it likes (I3).
func decideUpdate(d *store.Document, req specRequest) error {
	have, err := specOf(*d)
	if err != nil {
		return err
	}
	if err := mayChange(*d, have, req); err != nil {
		return err
	}
	if d.DeletedAt != nil {
		return rest.Errorf(http.StatusConflict, codeConflict, "the resource is under deletion, id: %s", d.ID)
	}
	version := have.version(d.Generation)
	if req.version != 0 && req.version != version {
		return rest.Errorf(http.StatusConflict, codeConflict,
			"the resource version is not the latest, the latest version: %d", version)
	}
	if jsonvalue.EqualOptional(have.Data, req.record.Data) && jsonvalue.EqualOptional(have.Metadata, req.record.Metadata) {
		return nil
	}
	next := req.record
	next.Source = have.Source // who made it keeps it
	next.Version, next.Offset = version+1, have.Offset
	d.Spec, err = json.Marshal(next)
	return err
}

// decideDelete orders a bundle's deletion, by a source or over REST.
func decideDelete(d *store.Document, now time.Time) {
	if d.DeletedAt == nil {
		d.DeletedAt = &now
	}
}

// mayChange holds what is common to the changes that a source makes: the
// bundle is its own, on the consumer that it names, at the version it wants.
func mayChange(d store.Document, have specRecord, req specRequest) error {
	switch {
	case have.Source != req.record.Source && !req.anySource:
		return rest.Errorf(http.StatusForbidden, codeForbidden,
			"bundle %s belongs to source %q; source %q cannot change it", d.ID, have.Source, req.record.Source)
	case d.Scope != req.record.Consumer:
		return invalid("bundle %s is on consumer %q, not %q; a bundle cannot move", d.ID, d.Scope, req.record.Consumer)
	case req.ifMatch != 0 && req.ifMatch != d.Version:
		return rest.Errorf(http.StatusPreconditionFailed, codeStale,
			"the resource has changed: its version is %d, not %d; read it again", d.Version, req.ifMatch)
	}
	return nil
}

// statusEvent is a status event of an agent, checked for form.
type statusEvent struct {
	record     statusRecord // Data without the bundle
	topic      string       // the consumer whose topic it came on
	deleted    bool
	dropped    string // why it was, once that is decided
	receivedAt *time.Time
	appliedAt  *time.Time
}

// A verdict is what becomes of a status event.
type verdict struct {
	drop    string // why it is dropped, a metric's label
	replace bool   // it is the bundle's status from now on
	remove  bool   // the bundle is gone
	ack     int64  // the generation that it acknowledges
	lost    bool   // the agent has deleted what is wanted; it has to have it again
}

// Reasons for dropping a status.
const (
	dropUnknown   = "unknown_bundle"
	dropConsumer  = "wrong_consumer"
	dropSource    = "wrong_source"
	dropStale     = "stale_sequence"
	dropFuture    = "future_generation"
	dropMalformed = "malformed"
)

// decideStatus judges a status event by the bundle as it is. sequence is the
// last one taken, also of a status that changed nothing.
//
// A status of an older generation says nothing about the present one, but it
// proves that the older one arrived. A deletion report counts only for a
// bundle that is under deletion: else it is an echo of an earlier life of the
// id, or an agent's error, and the work is wanted.
func decideStatus(d store.Document, have statusRecord, sequence string, ev statusEvent, sourceID string) verdict {
	switch {
	case d.Removed || d.ID == "":
		return verdict{drop: dropUnknown}
	case ev.record.Consumer != ev.topic || d.Scope != ev.topic:
		return verdict{drop: dropConsumer}
	case ev.record.OriginalSource != sourceID:
		return verdict{drop: dropSource}
	case ev.record.Version > d.Generation && !(ev.deleted && d.DeletedAt != nil):
		return verdict{drop: dropFuture}
	}
	if ev.deleted {
		if d.DeletedAt == nil {
			return verdict{drop: dropStale, lost: ev.record.Version == d.Generation}
		}
		// An id that was ordered again goes on in its generations, so an older
		// one here is of an earlier life, and the present one is still to go.
		if ev.record.Version < d.Generation {
			return verdict{drop: dropStale}
		}
		return verdict{remove: true, ack: d.Generation}
	}
	// A resync response is no exception: the answer to a question may be
	// overtaken by a later status, and would replace it. While an agent's clock
	// is behind its own last sequence its statuses are refused; its next
	// comparison after that brings the latest one.
	if !newer(ev.record.Sequence, sequence) {
		return verdict{drop: dropStale}
	}
	v := verdict{ack: ev.record.Version}
	if ev.record.Version == d.Generation {
		v.replace = !sameStatus(have, ev.record)
	}
	return v
}

// sameStatus compares content: a report that differs only in its sequence,
// time or event id is the same.
func sameStatus(a, b statusRecord) bool {
	if a.Version != b.Version || a.empty() != b.empty() {
		return false
	}
	return jsonvalue.EqualOptional(a.Data, b.Data)
}

// withoutBundle returns the data of a status event without the spec that some
// agents repeat in it.
func withoutBundle(data json.RawMessage) (json.RawMessage, *statusData, error) {
	var sd statusData
	if err := json.Unmarshal(data, &sd); err != nil {
		return nil, nil, fmt.Errorf("reading a status: %w", err)
	}
	if len(sd.Bundle) == 0 {
		return data, &sd, nil
	}
	sd.Bundle = nil
	stripped, err := marshal(sd)
	return stripped, &sd, err
}
