package bundle

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"atoll.dev/internal/jsonvalue"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/store"
)

// Request is a spec event of a source, checked for form.
type Request struct {
	Record  Spec
	Version int64 // resourceversion: 0 takes whatever is there
	IfMatch int64 // atollifmatch: 0 likewise

	// anySource lets a source change what another made, as the original does.
	AnySource bool
}

// DecideUpdate applies an update to the bundle as it is. It leaves d alone
// when the content is equal: neither the event's id nor its time are content,
// so a source may apply the same work as often as it likes (I3).
func DecideUpdate(d *store.Document, req Request) error {
	have, err := SpecOf(*d)
	if err != nil {
		return err
	}
	if err := CheckChange(*d, have, req); err != nil {
		return err
	}
	if d.DeletedAt != nil {
		return rest.Errorf(http.StatusConflict, apierror.CodeConflict, "the resource is under deletion, id: %s", d.ID)
	}
	version := have.VersionAt(d.Generation)
	if req.Version != 0 && req.Version != version {
		return rest.Errorf(http.StatusConflict, apierror.CodeConflict,
			"the resource version is not the latest, the latest version: %d", version)
	}
	if jsonvalue.EqualOptional(have.Data, req.Record.Data) &&
		jsonvalue.EqualOptional(have.Metadata, req.Record.Metadata) {
		return nil
	}
	next := req.Record
	next.Source = have.Source // who made it keeps it
	next.Version, next.Offset = version+1, have.Offset
	d.Spec, err = json.Marshal(next)
	return err
}

// DecideDelete orders a bundle's deletion, by a source or over REST.
func DecideDelete(d *store.Document, now time.Time) {
	if d.DeletedAt == nil {
		d.DeletedAt = &now
	}
}

// CheckChange holds what is common to the changes that a source makes: the
// bundle is its own, on the consumer that it names, at the version it wants.
func CheckChange(d store.Document, have Spec, req Request) error {
	switch {
	case have.Source != req.Record.Source && !req.AnySource:
		return rest.Errorf(http.StatusForbidden, apierror.CodeForbidden,
			"bundle %s belongs to source %q; source %q cannot change it", d.ID, have.Source, req.Record.Source)
	case d.Scope != req.Record.Consumer:
		return apierror.Invalid(
			"bundle %s is on consumer %q, not %q; a bundle cannot move",
			d.ID,
			d.Scope,
			req.Record.Consumer,
		)
	case req.IfMatch != 0 && req.IfMatch != d.Version:
		return rest.Errorf(http.StatusPreconditionFailed, apierror.CodeStale,
			"the resource has changed: its version is %d, not %d; read it again", d.Version, req.IfMatch)
	}
	return nil
}

// StatusEvent is a status event of an agent, checked for form.
type StatusEvent struct {
	Record     Status // Data without the bundle
	Topic      string // the consumer whose topic it came on
	Deleted    bool
	Dropped    string // why it was, once that is decided
	ReceivedAt *time.Time
	AppliedAt  *time.Time
}

// A verdict is what becomes of a status event.
type Verdict struct {
	Drop         string // why it is dropped, a metric's label
	Replace      bool   // it is the bundle's status from now on
	Remove       bool   // the bundle is gone
	Acknowledges int64  // the generation that it acknowledges
	Resend       bool   // the agent has deleted what is wanted; it has to have it again
}

// Reasons for dropping a status.
const (
	DropUnknown   = "unknown_bundle"
	DropConsumer  = "wrong_consumer"
	DropSource    = "wrong_source"
	DropStale     = "stale_sequence"
	DropFuture    = "future_generation"
	DropMalformed = "malformed"
)

// DecideStatus judges a status event by the bundle as it is. sequence is the
// last one taken, also of a status that changed nothing.
//
// A status of an older generation says nothing about the present one, but it
// proves that the older one arrived. A deletion report counts only for a
// bundle that is under deletion: else it is an echo of an earlier life of the
// id, or an agent's error, and the work is wanted.
func DecideStatus(d store.Document, have Status, sequence string, ev StatusEvent, sourceID string) Verdict {
	switch {
	case d.Removed || d.ID == "":
		return Verdict{Drop: DropUnknown}
	case ev.Record.Consumer != ev.Topic || d.Scope != ev.Topic:
		return Verdict{Drop: DropConsumer}
	case ev.Record.OriginalSource != sourceID:
		return Verdict{Drop: DropSource}
	case ev.Record.Version > d.Generation && !(ev.Deleted && d.DeletedAt != nil):
		return Verdict{Drop: DropFuture}
	}
	if ev.Deleted {
		if d.DeletedAt == nil {
			return Verdict{Drop: DropStale, Resend: ev.Record.Version == d.Generation}
		}
		// An id that was ordered again goes on in its generations, so an older
		// one here is of an earlier life, and the present one is still to go.
		if ev.Record.Version < d.Generation {
			return Verdict{Drop: DropStale}
		}
		return Verdict{Remove: true, Acknowledges: d.Generation}
	}
	// A resync response is no exception: the answer to a question may be
	// overtaken by a later status, and would replace it. While an agent's clock
	// is behind its own last sequence its statuses are refused; its next
	// comparison after that brings the latest one.
	if !IsNewer(ev.Record.Sequence, sequence) {
		return Verdict{Drop: DropStale}
	}
	v := Verdict{Acknowledges: ev.Record.Version}
	if ev.Record.Version == d.Generation {
		v.Replace = !sameStatus(have, ev.Record)
	}
	return v
}

// sameStatus compares content: a report that differs only in its sequence,
// time or event id is the same.
func sameStatus(a, b Status) bool {
	if a.Version != b.Version || a.IsEmpty() != b.IsEmpty() {
		return false
	}
	return jsonvalue.EqualOptional(a.Data, b.Data)
}

// WithoutBundle returns the data of a status event without the spec that some
// agents repeat in it.
func WithoutBundle(data json.RawMessage) (json.RawMessage, *StatusData, error) {
	var sd StatusData
	if err := json.Unmarshal(data, &sd); err != nil {
		return nil, nil, fmt.Errorf("reading a status: %w", err)
	}
	if len(sd.Bundle) == 0 {
		return data, &sd, nil
	}
	sd.Bundle = nil
	stripped, err := Marshal(sd)
	return stripped, &sd, err
}
