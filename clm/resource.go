package clm

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	api "atoll.dev/api/clm"
	"atoll.dev/clm/status"
	"atoll.dev/cluster"
	"atoll.dev/internal/jsonscan"
	"atoll.dev/store"
)

// A resource is a document of the store. Its kind is the entity's. Its scope, in which its
// name is unique, is the owner's id, or the tenancy for a resource without owner. Its
// generation is the contract's.

// declared is the part of a resource that callers set: a document's spec. Each change of
// it makes a new generation.
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
	// Traceparent is that of the request that made the generation, "" if it had none.
	// Spans of work on the generation continue its trace.
	Traceparent string `json:"traceparent,omitempty"`

	isCompact bool // Spec has no white space and no character that json.Marshal escapes
}

// append appends the JSON of a declared. It makes Spec compact first, so that a wire form need not do that again.
func (r *declared) append(b []byte) ([]byte, error) {
	if !r.isCompact {
		compact, err := json.Marshal(r.Spec)
		if err != nil {
			return nil, err
		}
		r.Spec, r.isCompact = compact, true
	}
	w := wire{b: b}
	w.value(`{"labels":`, r.Labels)
	w.b = append(append(w.b, `,"spec":`...), r.Spec...)
	if len(r.References) > 0 {
		w.value(`,"references":`, r.References)
	}
	if r.Owner != nil {
		w.value(`,"owner":`, r.Owner)
	}
	w.value(`,"tenancy":`, r.Tenancy)
	w.text(`,"created_by":`, r.CreatedBy)
	w.text(`,"updated_by":`, r.UpdatedBy)
	w.value(`,"updated_time":`, r.UpdatedTime)
	if r.DeletedBy != "" {
		w.text(`,"deleted_by":`, r.DeletedBy)
	}
	if r.Traceparent != "" {
		w.text(`,"traceparent":`, r.Traceparent)
	}
	return append(w.b, '}'), w.err
}

// TraceparentOf returns the W3C traceparent of the request that made a resource's
// generation, "" if it had none. It decodes only documents that contain a traceparent.
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

// observed is the observed part of a resource: a document's status.
type observed struct {
	Conditions []status.Condition `json:"conditions"`
	Reports    []status.Report    `json:"reports"` // by adapter
	// DeletionRepeated is the time of the last DELETE of a resource that was being deleted already. It is an
	// observation: it moves updated_time and makes no version (I3).
	DeletionRepeated time.Time `json:"deletion_repeated,omitzero"`
	// EndedWithChild is true if the removal of its last child removed the resource, not a report of its own.
	EndedWithChild bool `json:"ended_with_child,omitempty"`

	// texts has the stored form of each of Reports; nil if it must be encoded.
	texts []json.RawMessage
}

// updatedTime returns the resource's updated_time.
func (o *observed) updatedTime(spec declared) time.Time {
	if o.DeletionRepeated.After(spec.UpdatedTime) {
		return o.DeletionRepeated
	}
	return spec.UpdatedTime
}

// decoded has a document's decoded spec and status. Document.Decoded holds it. It is valid
// only for the very bytes from which it was decoded.
type decoded struct {
	specText, statusText json.RawMessage
	spec                 declared
	seen                 observed
}

// decodedOf returns the decoded form of a document; nil if it was not decoded, or has
// changed since.
func decodedOf(d store.Document) *decoded {
	m, _ := d.Decoded.(*decoded)
	if m == nil || !identical(m.specText, d.Spec) || !identical(m.statusText, d.Status) {
		return nil
	}
	return m
}

// identical reports whether two texts are the same bytes in memory, or both have none, as the specs of partial
// documents.
func identical(a, b json.RawMessage) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// decode decodes a document and stores the result in it, for all later readers.
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

// declaredOf returns a document's decoded spec; of a partial document, only what scanTail finds.
// The result shares maps with other copies: a caller must not change a map, but replace it.
func declaredOf(d store.Document) (declared, error) {
	if m := decodedOf(d); m != nil {
		return m.spec, nil
	}
	scan, text := scanDeclared, []byte(d.Spec)
	if d.IsPartial() {
		scan, text = scanTail, d.Wire
	}
	r, err := scan(text)
	if err != nil {
		return r, fmt.Errorf("reading %s %s: %w", d.Kind, d.ID, err)
	}
	return r, nil
}

// scanDeclared decodes the JSON of a declared. Its spec shares memory with text.
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

// observedOf returns a document's decoded status. The caller may change its lists.
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

// find returns the index of an adapter's report, or the index at which to insert it.
func (o *observed) find(adapter cluster.Adapter) (i int, have bool) {
	return slices.BinarySearchFunc(o.Reports, adapter, func(r status.Report, name cluster.Adapter) int {
		return cmp.Compare(r.Adapter, name)
	})
}

// encodeStatus sets a document's status, and its decoded form.
func encodeStatus(d *store.Document, spec declared, seen observed) {
	d.Status = seen.encode(len(d.Status) + 1024)
	d.Decoded = &decoded{d.Spec, d.Status, spec, seen}
}

// encode returns the status as JSON, and sets texts to the texts of the reports. size is an estimate of its length.
func (seen *observed) encode(size int) json.RawMessage {
	b := make([]byte, 0, size)
	b = status.AppendConditions(append(b, `{"conditions":`...), seen.Conditions)
	if !seen.DeletionRepeated.IsZero() {
		b = jsonscan.AppendTime(append(b, `,"deletion_repeated":`...), seen.DeletionRepeated)
	}
	if seen.EndedWithChild {
		b = append(b, `,"ended_with_child":true`...)
	}
	b = append(b, reportsMember...)
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
	seen.texts = texts
	return append(b, "]}"...)
}

// reportsMember begins the last member of a status, which no search reads.
const reportsMember = `,"reports":[`

// statusDetail returns where the reports begin in a status that encodeStatus wrote. No member before
// the reports has this name at any depth, and quotes within texts are escaped.
func statusDetail(text json.RawMessage) int { return bytes.Index(text, []byte(reportsMember)) }

// compare returns how the statuses of two states of a resource differ.
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

// sameStoredSpec reports whether two states of a resource have the same spec. Most changed specs have another time of
// their update, which shows the difference without reading the JSON.
func sameStoredSpec(before, after store.Document) (bool, error) {
	if identical(before.Spec, after.Spec) {
		return true, nil
	}
	a, b := decodedOf(before), decodedOf(after)
	if a != nil && b != nil && !a.spec.UpdatedTime.Equal(b.spec.UpdatedTime) {
		return false, nil
	}
	return store.SameJSON(before.Spec, after.Spec)
}

// recorded returns the part of a changed status that the history keeps: changed reports,
// conditions that changed in more than their time of update, and always Reconciled.
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

// facets returns the conditions of a resource as TYPE=STATUS, by which searches find it.
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
