package clm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	api "atoll.dev/api/clm"
	"atoll.dev/clm/status"
	"atoll.dev/internal/jsonscan"
	"atoll.dev/store"
)

// A resource is a document of the store: its kind is the entity's, its scope
// what its name is unique in (the owner's id, or the tenancy of one without
// owner), its generation the contract's.

// declared is what callers say of a resource, a document's spec. Whatever
// changes in it is a new generation.
type declared struct {
	Labels      api.Labels           `json:"labels"`
	Spec        json.RawMessage      `json:"spec"`
	References  api.References       `json:"references,omitempty"`
	Owner       *api.ObjectReference `json:"owner,omitempty"`
	Tenancy     map[string]string    `json:"tenancy"`
	CreatedBy   string               `json:"created_by"`
	UpdatedBy   string               `json:"updated_by"`
	UpdatedTime time.Time            `json:"updated_time"`
	DeletedBy   string               `json:"deleted_by,omitempty"`
	// Traceparent is the place in a trace of the request that made the
	// generation, "" if it was in none. What is done about it continues there.
	Traceparent string `json:"traceparent,omitempty"`
}

// TraceparentOf is the place in a trace of the request that made a resource's
// generation, as W3C has it, "" if it was in none. It decodes nothing for the
// others.
func TraceparentOf(d store.Document) string {
	if !bytes.Contains(d.Spec, []byte(`"traceparent"`)) {
		return ""
	}
	spec, err := declaredOf(d)
	if err != nil {
		return ""
	}
	return spec.Traceparent
}

// observed is what is known of it, a document's status.
type observed struct {
	Conditions []status.Condition `json:"conditions"`
	Reports    []status.Report    `json:"reports"` // by adapter
	// DeletionRepeated is the time of the last DELETE of a resource that was being deleted already. It is an
	// observation: it moves updated_time and makes no version (I3).
	DeletionRepeated time.Time `json:"deletion_repeated,omitzero"`
	// EndedWithChild says that the resource was removed with its last child, not by a report of its own.
	EndedWithChild bool `json:"ended_with_child,omitempty"`

	// texts are the stored forms of Reports, each nil when it has to be made.
	texts []json.RawMessage
}

// updatedTime is the resource's updated_time.
func (o *observed) updatedTime(spec declared) time.Time {
	if o.DeletionRepeated.After(spec.UpdatedTime) {
		return o.DeletionRepeated
	}
	return spec.UpdatedTime
}

// decoded is what a document's spec and status were decoded into. It travels
// with the document, in Document.Decoded, and belongs to these very bytes.
type decoded struct {
	specText, statusText json.RawMessage
	spec                 declared
	seen                 observed
}

// decodedOf finds what a document was decoded into; nil when it was not, or has
// other bytes since.
func decodedOf(d store.Document) *decoded {
	m, _ := d.Decoded.(*decoded)
	if m == nil || !identical(m.specText, d.Spec) || !identical(m.statusText, d.Status) {
		return nil
	}
	return m
}

// identical says that two texts are the same bytes in memory.
func identical(a, b json.RawMessage) bool {
	return len(a) == len(b) && len(a) > 0 && &a[0] == &b[0]
}

// decode decodes a document once for all who look at it.
func decode(d *store.Document) error {
	if decodedOf(*d) != nil {
		return nil
	}
	spec, err := declaredOf(*d)
	if err != nil {
		return err
	}
	seen, err := observedOf(*d)
	if err != nil {
		return err
	}
	d.Decoded = &decoded{d.Spec, d.Status, spec, seen}
	return nil
}

// declaredOf reads a document's spec. What it returns shares maps with others'
// copies: who changes one replaces it.
func declaredOf(d store.Document) (declared, error) {
	if m := decodedOf(d); m != nil {
		return m.spec, nil
	}
	r, err := scanDeclared(d.Spec)
	if err != nil {
		return r, fmt.Errorf("reading %s %s: %w", d.Kind, d.ID, err)
	}
	return r, nil
}

// scanDeclared reads what json.Marshal made of a declared. Its spec shares memory with text.
func scanDeclared(text []byte) (r declared, err error) {
	s := jsonscan.New(text)
	s.Object(func(key string) {
		switch key {
		case "labels":
			r.Labels = scanStrings(s)
		case "spec":
			r.Spec = s.Raw()
		case "references":
			err = errors.Join(err, json.Unmarshal(s.Raw(), &r.References))
		case "owner":
			err = errors.Join(err, json.Unmarshal(s.Raw(), &r.Owner))
		case "tenancy":
			r.Tenancy = scanStrings(s)
		case "created_by":
			r.CreatedBy = s.String()
		case "updated_by":
			r.UpdatedBy = s.String()
		case "updated_time":
			r.UpdatedTime = s.Time()
		case "deleted_by":
			r.DeletedBy = s.String()
		case "traceparent":
			r.Traceparent = s.String()
		default:
			s.Skip()
		}
	})
	return r, errors.Join(err, s.End())
}

// scanStrings reads an object whose values are strings; nil is null.
func scanStrings(s *jsonscan.Scanner) map[string]string {
	if s.Null() {
		return nil
	}
	m := map[string]string{}
	s.Object(func(key string) { m[key] = s.String() })
	return m
}

// observedOf reads a document's status. Its lists are the caller's own.
func observedOf(d store.Document) (o observed, err error) {
	if m := decodedOf(d); m != nil {
		o = m.seen
		o.Conditions, o.Reports, o.texts = slices.Clone(m.seen.Conditions), slices.Clone(m.seen.Reports),
			slices.Clone(m.seen.texts)
		return o, nil
	}
	s := jsonscan.New(d.Status)
	s.Object(func(key string) {
		switch key {
		case "conditions":
			o.Conditions = status.ScanConditions(s)
		case "reports":
			s.Array(func() {
				text := s.Raw()
				o.Reports = append(o.Reports, status.ScanReport(jsonscan.New(text)))
				o.texts = append(o.texts, text)
			})
		case "deletion_repeated":
			o.DeletionRepeated = s.Time()
		case "ended_with_child":
			o.EndedWithChild = s.Bool()
		default:
			s.Skip()
		}
	})
	if err := s.End(); err != nil {
		return o, fmt.Errorf("reading the status of %s %s: %w", d.Kind, d.ID, err)
	}
	return o, nil
}

// replace makes r the report of its adapter.
func (o *observed) replace(r status.Report) {
	i, have := o.find(r.Adapter)
	if !have {
		o.Reports = slices.Insert(o.Reports, i, r)
		o.texts = slices.Insert(o.texts, min(i, len(o.texts)), nil)
		return
	}
	o.Reports[i], o.texts[i] = r, nil
}

func (o *observed) find(adapter string) (i int, have bool) {
	return slices.BinarySearchFunc(o.Reports, adapter, func(r status.Report, name string) int {
		return strings.Compare(r.Adapter, name)
	})
}

// encodeStatus gives a document the status seen.
func encodeStatus(d *store.Document, spec declared, seen observed) {
	b := make([]byte, 0, len(d.Status)+1024)
	b = status.AppendConditions(append(b, `{"conditions":`...), seen.Conditions)
	b = append(b, `,"reports":[`...)
	texts := make([]json.RawMessage, len(seen.Reports))
	copy(texts, seen.texts)
	for i, r := range seen.Reports {
		if i > 0 {
			b = append(b, ',')
		}
		if texts[i] == nil {
			texts[i] = r.Append(nil)
		}
		b = append(b, texts[i]...)
	}
	b = append(b, ']')
	if !seen.DeletionRepeated.IsZero() {
		b = jsonscan.AppendTime(append(b, `,"deletion_repeated":`...), seen.DeletionRepeated)
	}
	if seen.EndedWithChild {
		b = append(b, `,"ended_with_child":true`...)
	}
	d.Status = append(b, '}')
	seen.texts = texts
	d.Decoded = &decoded{d.Spec, d.Status, spec, seen}
}

// compare says how the statuses of two states of a resource differ.
func compare(before, after store.Document) store.Difference {
	if identical(before.Status, after.Status) {
		return store.Equal
	}
	a, err1 := observedOf(before)
	b, err2 := observedOf(after)
	switch {
	case err1 != nil || err2 != nil || a.EndedWithChild != b.EndedWithChild,
		!status.SameButTimes(a.Reports, b.Reports, a.Conditions, b.Conditions):
		return store.Different
	case slices.EqualFunc(a.Reports, b.Reports, status.Report.Repeats) && slices.Equal(a.Conditions, b.Conditions) &&
		a.DeletionRepeated.Equal(b.DeletionRepeated):
		return store.Equal
	}
	return store.ObservedLater
}

// recorded is what the history keeps of a change of a resource's status: the
// reports that changed, the conditions that say something else, and always
// Reconciled.
func recorded(before, after store.Document) json.RawMessage {
	a, err1 := observedOf(before)
	b, err2 := observedOf(after)
	if err1 != nil || err2 != nil {
		return after.Status
	}
	var conditions []status.Condition
	for _, c := range b.Conditions {
		same := slices.ContainsFunc(a.Conditions, func(was status.Condition) bool {
			was.LastUpdatedTime = c.LastUpdatedTime
			return was == c
		})
		if !same || c.Type == status.Reconciled {
			conditions = append(conditions, c)
		}
	}
	text := status.AppendConditions([]byte(`{"conditions":`), conditions)
	text = append(text, `,"reports":[`...)
	first := true
	for i, r := range b.Reports {
		if at, have := a.find(r.Adapter); have && (identicalText(a.texts[at], b.texts[i]) || a.Reports[at].Repeats(r)) {
			continue
		}
		if !first {
			text = append(text, ',')
		}
		r.Recent = nil // no reader of the history needs it
		text, first = r.Append(text), false
	}
	return append(text, "]}"...)
}

func identicalText(a, b json.RawMessage) bool { return a != nil && b != nil && bytes.Equal(a, b) }

// facets are the conditions of a resource with their statuses, by which searches find it.
func facets(d store.Document) []string {
	seen, err := observedOf(d)
	if err != nil {
		return nil
	}
	texts := make([]string, len(seen.Conditions))
	for i, c := range seen.Conditions {
		texts[i] = c.Type + "=" + string(c.Status)
	}
	return texts
}

const basePath = "/api/hyperfleet/v1"

// href is a resource's own path: below its owner's, if it has one.
func (e *Entity) href(owner *api.ObjectReference, id string) string {
	if owner == nil {
		return basePath + "/" + e.Plural + "/" + id
	}
	return owner.Href + "/" + e.Plural + "/" + id
}

// reference is how others refer to a resource of the kind.
func (e *Entity) reference(owner *api.ObjectReference, id string) api.ObjectReference {
	return api.ObjectReference{ID: id, Kind: e.Kind, Href: e.href(owner, id)}
}

// render makes the wire form of a resource: api.Resource, without reflection.
func (e *Entity) render(d store.Document) ([]byte, error) {
	spec, err := declaredOf(d)
	if err != nil {
		return nil, err
	}
	w := wire{b: make([]byte, 0, 2048+len(spec.Spec))}
	w.text(`{"created_by":`, spec.CreatedBy)
	w.time(`,"created_time":`, d.CreatedAt.UTC())
	if spec.DeletedBy != "" {
		w.text(`,"deleted_by":`, spec.DeletedBy)
	}
	if d.DeletedAt != nil {
		w.time(`,"deleted_time":`, d.DeletedAt.UTC())
	}
	w.b = strconv.AppendInt(append(w.b, `,"generation":`...), d.Generation, 10)
	w.text(`,"href":`, e.href(spec.Owner, d.ID))
	w.text(`,"id":`, d.ID)
	w.text(`,"kind":`, e.Kind)
	if len(spec.Labels) > 0 {
		w.value(`,"labels":`, spec.Labels)
	}
	w.text(`,"name":`, d.Name)
	if spec.Owner != nil {
		w.value(`,"owner_references":`, spec.Owner)
	}
	if len(spec.References) > 0 {
		w.value(`,"references":`, spec.References)
	}
	w.value(`,"spec":`, spec.Spec)
	if w.err != nil {
		return nil, w.err
	}
	return e.appendTail(w.b, d, spec)
}

// renderTail makes the part of the wire form that a change of the status changes: what follows wireHead.
func (e *Entity) renderTail(d store.Document) ([]byte, error) {
	spec, err := declaredOf(d)
	if err != nil {
		return nil, err
	}
	return e.appendTail(make([]byte, 0, 2048), d, spec)
}

func (e *Entity) appendTail(b []byte, d store.Document, spec declared) ([]byte, error) {
	seen, err := observedOf(d)
	if err != nil {
		return nil, err
	}
	awaited := status.Awaited(e.standing(d, spec, false), seen.Reports)
	w := wire{b: append(b, statusMember...)}
	for i, a := range awaited {
		if i == 0 {
			w.b = append(w.b, `"awaiting":[`...)
		} else {
			w.b = append(w.b, ',')
		}
		w.text(`{"adapter":`, a.Adapter)
		if a.Reported != "" {
			w.text(`,"reported":`, string(a.Reported))
		}
		w.time(`,"since":`, a.Since)
		w.b = append(w.b, '}')
	}
	if len(awaited) > 0 {
		w.b = append(w.b, `],`...)
	}
	w.b = status.AppendConditions(append(w.b, `"conditions":`...), seen.Conditions)
	w.value(`},"tenancy":`, spec.Tenancy)
	w.text(`,"updated_by":`, spec.UpdatedBy)
	w.time(`,"updated_time":`, seen.updatedTime(spec))
	return append(w.b, '}'), w.err
}

// wireHead returns how many of a wire form's first bytes come before the status, the last member of that name that
// is an object. A wrong answer would cost writes and nothing else: the store joins the two parts again.
func wireHead(wire []byte) int {
	return max(0, bytes.LastIndex(wire, []byte(statusMember)))
}

const statusMember = `,"status":{`

// wire is a wire form that is being made.
type wire struct {
	b   []byte
	err error
}

func (w *wire) text(key, v string) { w.b = jsonscan.AppendString(append(w.b, key...), v) }

func (w *wire) time(key string, t time.Time) { w.b = jsonscan.AppendTime(append(w.b, key...), t) }

func (w *wire) value(key string, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		w.err = fmt.Errorf("rendering %s: %w", strings.Trim(key, `,":}`), err)
	}
	w.b = append(append(w.b, key...), text...)
}
