package bundle

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/internal/jsonvalue"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/store"
)

// Request is a spec event of a source, checked for form.
type Request struct {
	Record  Spec
	Version int64 // resourceversion: 0 accepts any version
	IfMatch int64 // atollifmatch: 0 accepts any version

	// AnySource lets a source change bundles of another source, as the original does.
	AnySource bool
}

// DecideUpdate applies an update to a bundle, and returns the spec that the bundle has then. It does not change d
// when the content is equal: the event's id and time are no content, so a source may repeat an update (I3).
func DecideUpdate(d *store.Document, req Request) (Spec, error) {
	have, err := SpecOf(*d)
	if err != nil {
		return have, err
	}
	if err := CheckChange(*d, have, req); err != nil {
		return have, err
	}
	if d.DeletedAt != nil {
		return have, rest.Errorf(http.StatusConflict, apierror.CodeConflict, "the resource is under deletion, id: %s", d.ID)
	}
	version := have.VersionAt(d.Generation)
	if req.Version != 0 && req.Version != version {
		return have, rest.Errorf(http.StatusConflict, apierror.CodeConflict,
			"the resource version is not the latest, the latest version: %d", version)
	}
	if jsonvalue.EqualOptional(have.Data, req.Record.Data) &&
		jsonvalue.EqualOptional(have.Metadata, req.Record.Metadata) {
		return have, nil
	}
	next := req.Record
	next.Source = have.Source // the creator stays the source
	next.Version, next.Offset = version+1, have.Offset
	d.Spec, err = json.Marshal(next)
	return next, err
}

// DecideDelete orders a bundle's deletion, by a source or over REST.
func DecideDelete(d *store.Document, now time.Time) {
	if d.DeletedAt == nil {
		d.DeletedAt = &now
	}
}

// CheckChange refuses a source's change or deletion of a bundle that belongs to another
// source, is on another consumer, or has another version than the request requires.
func CheckChange(d store.Document, have Spec, req Request) error {
	switch {
	case have.Source != req.Record.Source && !req.AnySource:
		return rest.Errorf(http.StatusForbidden, apierror.CodeForbidden,
			"bundle %s belongs to source %q; source %q cannot change it", d.ID, have.Source, req.Record.Source)
	case work.Consumer(d.Scope) != req.Record.Consumer:
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
	Record     Status        // Data without the bundle
	Topic      work.Consumer // the consumer whose topic the event arrived on
	Deleted    bool
	Dropped    string // the reason, set when the event was dropped
	ReceivedAt *time.Time
	AppliedAt  *time.Time
}

// A Verdict is the decision about a status event.
type Verdict struct {
	Drop         string // reason for dropping the event, the label of a metric; "": not dropped
	Replace      bool   // the event replaces the bundle's status
	Remove       bool   // the bundle is removed
	Acknowledges int64  // the generation that it acknowledges
	Resend       bool   // the agent deleted a work that is not under deletion; send it again
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

// DecideStatus decides about a status event of a bundle. sequence is the sequence id of
// the last accepted status, also when that status changed nothing.
//
// A status of an older generation does not describe the present one, but it proves that
// the older one arrived. A report of a deletion counts only for a bundle under deletion:
// otherwise it is about an earlier bundle of the same id, or an agent's error.
func DecideStatus(d store.Document, have Status, sequence string, ev StatusEvent, sourceID string) Verdict {
	switch {
	case d.Removed || d.ID == "":
		return Verdict{Drop: DropUnknown}
	case ev.Record.Consumer != ev.Topic || work.Consumer(d.Scope) != ev.Topic:
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
		// A new bundle of a used id continues its generations, so a report with an
		// older generation is about the earlier bundle.
		if ev.Record.Version < d.Generation {
			return Verdict{Drop: DropStale}
		}
		return Verdict{Remove: true, Acknowledges: d.Generation}
	}
	// This rule is also for resync responses: a later status may overtake the
	// response, which must not replace it. An agent that lost its store may begin below
	// its own last sequence; the next request for statuses carries that sequence
	// (docs/decisions/075).
	if !IsNewer(ev.Record.Sequence, sequence) {
		return Verdict{Drop: DropStale}
	}
	v := Verdict{Acknowledges: ev.Record.Version}
	if ev.Record.Version == d.Generation {
		v.Replace = !sameStatus(have, ev.Record)
	}
	return v
}

// sameStatus reports whether the content is equal; sequence, time and event id are no content.
func sameStatus(a, b Status) bool {
	if a.Version != b.Version || a.IsEmpty() != b.IsEmpty() {
		return false
	}
	return jsonvalue.EqualOptional(a.Data, b.Data)
}

// WithoutBundle returns the data of a status event without the spec that some
// agents repeat in it.
func WithoutBundle(data json.RawMessage) (json.RawMessage, error) {
	var sd StatusData
	if err := json.Unmarshal(data, &sd); err != nil {
		return nil, fmt.Errorf("reading a status: %w", err)
	}
	if len(sd.Bundle) == 0 {
		return data, nil
	}
	sd.Bundle = nil
	return Marshal(sd)
}
