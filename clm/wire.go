package clm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	api "atoll.dev/api/clm"
	"atoll.dev/clm/status"
	"atoll.dev/internal/jsonscan"
	"atoll.dev/store"
)

const basePath = "/api/hyperfleet/v1"

// href returns the path of a resource: below its owner's path, if it has an owner.
func (e *Entity) href(owner *api.ObjectReference, id string) string {
	if owner == nil {
		return basePath + "/" + e.Plural + "/" + id
	}
	return owner.Href + "/" + e.Plural + "/" + id
}

// reference returns a reference to a resource of the kind.
func (e *Entity) reference(owner *api.ObjectReference, id string) api.ObjectReference {
	return api.ObjectReference{ID: id, Kind: e.Kind, Href: e.href(owner, id)}
}

// render encodes the wire form of a resource, which is api.Resource, without reflection.
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
	if spec.isCompact {
		w.b = append(append(w.b, `,"spec":`...), spec.Spec...)
	} else {
		w.value(`,"spec":`, spec.Spec)
	}
	if w.err != nil {
		return nil, w.err
	}
	return e.appendTail(w.b, d, spec)
}

// renderTail encodes the part of the wire form that depends on the status: the part after wireHead.
func (e *Entity) renderTail(d store.Document) ([]byte, error) {
	spec, err := declaredOf(d)
	if err != nil {
		return nil, err
	}
	return e.appendTail(make([]byte, 0, 2048), d, spec)
}

// appendTail appends the part of the wire form that depends on the status.
func (e *Entity) appendTail(b []byte, d store.Document, spec declared) ([]byte, error) {
	seen, err := observedOf(d)
	if err != nil {
		return nil, err
	}
	awaited := status.Awaited(e.statusResource(d, spec, status.NoChildren), seen.Reports)
	w := wire{b: append(b, statusMember...)}
	for i, a := range awaited {
		if i == 0 {
			w.b = append(w.b, `"awaiting":[`...)
		} else {
			w.b = append(w.b, ',')
		}
		w.text(`{"adapter":`, string(a.Adapter))
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
	w.value(tenancyMember, spec.Tenancy)
	w.text(`,"updated_by":`, spec.UpdatedBy)
	w.time(`,"updated_time":`, seen.updatedTime(spec))
	return append(w.b, '}'), w.err
}

// tenancyMember begins the last members of a wire form, which follow the status. No value before it contains it: quotes
// within texts are escaped, and no object follows another one's end under this name.
const tenancyMember = `},"tenancy":`

// scanTail returns the members of a spec that appendTail writes, from its result. They are those on which the
// conditions depend, and those that the next appendTail needs. UpdatedTime is the resource's, which differs from the
// spec's only for a resource whose deletion was repeated.
func scanTail(tail []byte) (r declared, err error) {
	at := bytes.LastIndex(tail, []byte(tenancyMember))
	if at < 0 {
		return r, errors.New("the wire form has no tenancy")
	}
	members := 0
	s := jsonscan.New(append([]byte{'{'}, tail[at+len(`},`):]...))
	s.Object(func(key string) {
		members++
		switch key {
		case "tenancy":
			r.Tenancy = scanStrings(s)
		case "updated_by":
			r.UpdatedBy = s.String()
		case "updated_time":
			r.UpdatedTime = s.Time()
		default:
			members = -1 << 10
			s.Skip()
		}
	})
	if err := s.End(); err != nil {
		return r, fmt.Errorf("reading the end of the wire form: %w", err)
	}
	if members != 3 {
		return r, errors.New("the wire form does not end with tenancy, updated_by and updated_time")
	}
	return r, nil
}

// wireHead returns how many of a wire form's first bytes come before the status, the last member of that name that
// is an object. A wrong answer would cost writes and nothing else: the store joins the two parts again.
func wireHead(wire []byte) int {
	return max(0, bytes.LastIndex(wire, []byte(statusMember)))
}

const statusMember = `,"status":{`

// wire builds a wire form member by member; err is the last error of a value.
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
