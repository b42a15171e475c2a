package bundle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/store"
)

// Kinds of documents.
const (
	ConsumerKind store.Kind = "Consumer"
	Kind         store.Kind = "Bundle" // id is the bundle's, scope the consumer's name
)

// Spec is a bundle as its source sent it. The stored form is the whole CloudEvent as
// one JSON object; searches read this form.
//
// Agents get the document's generation, which never decreases: a new bundle continues
// the generations of a deleted bundle with the same id, and its generation is above
// the one that its agent has. Sources get a version that begins with 1 and increases by
// 1 with each of their changes (docs/decisions/038). Offset is the difference; records
// of versions of Maestro without Offset have 0.
type Spec struct {
	EventID     string          `json:"id"`
	Source      string          `json:"source"`
	SpecVersion string          `json:"specversion"`
	Type        string          `json:"type"`
	Time        *time.Time      `json:"time,omitempty"`
	ContentType string          `json:"datacontenttype"`
	Consumer    work.Consumer   `json:"clustername"`
	ID          work.ID         `json:"resourceid"`
	Version     int64           `json:"resourceversion"` // as the source sees it
	Offset      int64           `json:"generationoffset,omitempty"`
	LogTracing  string          `json:"logtracing,omitempty"`
	Metadata    json.RawMessage `json:"metadata,omitempty"`
	Data        json.RawMessage `json:"data"`
}

// Status is the last status event of a bundle's agent, stored likewise.
// The zero value is the status of a bundle that has none.
type Status struct {
	EventID        string          `json:"id,omitempty"`
	Source         string          `json:"source,omitempty"`
	SpecVersion    string          `json:"specversion,omitempty"`
	Type           string          `json:"type,omitempty"`
	Time           *time.Time      `json:"time,omitempty"`
	ContentType    string          `json:"datacontenttype,omitempty"`
	Consumer       work.Consumer   `json:"clustername,omitempty"`
	ID             work.ID         `json:"resourceid,omitempty"`
	Version        int64           `json:"resourceversion,omitempty"` // the generation that the agent reported on
	OriginalSource string          `json:"originalsource,omitempty"`
	Sequence       string          `json:"sequenceid,omitempty"`
	Hash           string          `json:"statushash,omitempty"`
	Data           json.RawMessage `json:"data,omitempty"`
	Offset         int64           `json:"generationoffset,omitempty"` // the bundle's when the status was taken
}

// VersionAt returns the version that sources see of a generation.
func (r *Spec) VersionAt(generation int64) int64 { return max(0, generation-r.Offset) }

// observedVersion returns the source's version of the generation that the agent reported on.
func (s *Status) observedVersion() int64 { return max(0, s.Version-s.Offset) }

// FirstOffset returns the Offset of a new bundle: its first generation is its source's version 1.
func FirstOffset(generation int64) int64 { return generation - 1 }

// Begin sets the version of a new bundle to 1 when its id was used by a deleted bundle.
func Begin(d *store.Document) error {
	if d.Generation == 1 {
		return nil
	}
	spec, err := SpecOf(*d)
	if err != nil {
		return err
	}
	spec.Offset, spec.Version = FirstOffset(d.Generation), 1
	d.Spec, err = Marshal(spec)
	return err
}

func (s *Status) IsEmpty() bool { return len(s.Data) == 0 }

// shownData has the members of a spec event's data that the REST form shows, as the source sent them.
type shownData struct {
	Manifests       []json.RawMessage `json:"manifests"`
	DeleteOption    json.RawMessage   `json:"deleteOption"`
	ManifestConfigs []json.RawMessage `json:"manifestConfigs"`
}

// StatusData is the data of a status event. Members that Maestro only passes on stay raw.
type StatusData struct {
	Bundle         json.RawMessage   `json:"manifestBundle,omitempty"`
	Conditions     []json.RawMessage `json:"conditions,omitempty"`
	ResourceStatus []json.RawMessage `json:"resourceStatus,omitempty"`
}

// Deleted reports whether the agent reported that the work is deleted from its cluster.
func (d *StatusData) Deleted() bool {
	for _, raw := range d.Conditions {
		var c struct{ Type, Status string }
		if json.Unmarshal(raw, &c) == nil && c.Type == work.ConditionDeleted && c.Status == "True" {
			return true
		}
	}
	return false
}

// ShowVersions replaces the observed generations in an agent's conditions by versions of
// the source, which a client compares with the bundle's version.
func (d *StatusData) ShowVersions(offset int64) (err error) {
	if offset == 0 {
		return nil
	}
	if d.Conditions, err = conditionVersions(d.Conditions, offset); err != nil {
		return err
	}
	resources := make([]json.RawMessage, len(d.ResourceStatus))
	for i, raw := range d.ResourceStatus {
		resources[i] = raw
		var resource map[string]json.RawMessage
		var conditions []json.RawMessage
		if json.Unmarshal(raw, &resource) != nil || json.Unmarshal(resource["conditions"], &conditions) != nil {
			continue // no such member
		}
		if conditions, err = conditionVersions(conditions, offset); err != nil {
			return err
		}
		if resource["conditions"], err = Marshal(conditions); err != nil {
			return err
		}
		if resources[i], err = Marshal(resource); err != nil {
			return err
		}
	}
	d.ResourceStatus = resources
	return nil
}

func conditionVersions(conditions []json.RawMessage, offset int64) ([]json.RawMessage, error) {
	shown := make([]json.RawMessage, len(conditions))
	for i, raw := range conditions {
		shown[i] = raw
		var condition map[string]json.RawMessage
		var generation int64
		if json.Unmarshal(raw, &condition) != nil || json.Unmarshal(condition["observedGeneration"],
			&generation) != nil {
			continue // no such member
		}
		var err error
		condition["observedGeneration"] = json.RawMessage(strconv.FormatInt(max(0, generation-offset), 10))
		if shown[i], err = Marshal(condition); err != nil {
			return nil, err
		}
	}
	return shown, nil
}

// SpecOf decodes the spec of a bundle's document.
func SpecOf(d store.Document) (Spec, error) {
	var r Spec
	if err := json.Unmarshal(d.Spec, &r); err != nil {
		return r, fmt.Errorf("reading the spec of bundle %s: %w", d.ID, err)
	}
	return r, nil
}

// StatusOf decodes the status of a bundle's document. Without a status it returns the zero value.
func StatusOf(d store.Document) (Status, error) {
	var r Status
	if len(d.Status) == 0 {
		return r, nil
	}
	if err := json.Unmarshal(d.Status, &r); err != nil {
		return r, fmt.Errorf("reading the status of bundle %s: %w", d.ID, err)
	}
	return r, nil
}

// Render makes the REST form of a bundle.
func Render(d store.Document) ([]byte, error) {
	spec, err := SpecOf(d)
	if err != nil {
		return nil, err
	}
	status, err := StatusOf(d)
	if err != nil {
		return nil, err
	}
	var data shownData
	if err := json.Unmarshal(spec.Data, &data); err != nil {
		return nil, fmt.Errorf("reading the data of bundle %s: %w", d.ID, err)
	}
	metadata, err := RowMetadata(spec.Metadata, d)
	if err != nil {
		return nil, err
	}
	b := api.ResourceBundle{
		ID: d.ID, Kind: "ResourceBundle", Href: api.BasePath + "/resource-bundles/" + d.ID,
		Name: d.ID, ConsumerName: d.Scope, Version: spec.VersionAt(d.Generation),
		CreatedAt: d.CreatedAt.UTC(), UpdatedAt: d.UpdatedAt.UTC(),
		Metadata: metadata, Manifests: data.Manifests,
		DeleteOption: data.DeleteOption, ManifestConfigs: data.ManifestConfigs,
		Status: &api.ResourceBundleStatus{},
	}
	if d.DeletedAt != nil {
		t := d.DeletedAt.UTC()
		b.DeletedAt = &t
	}
	if !status.IsEmpty() {
		var sd StatusData
		if err := json.Unmarshal(status.Data, &sd); err != nil {
			return nil, fmt.Errorf("reading the status data of bundle %s: %w", d.ID, err)
		}
		if err := sd.ShowVersions(status.Offset); err != nil {
			return nil, fmt.Errorf("reading the conditions of bundle %s: %w", d.ID, err)
		}
		b.Status = &api.ResourceBundleStatus{
			ObservedVersion: status.observedVersion(), SequenceID: status.Sequence,
			Conditions: sd.Conditions, ResourceStatus: sd.ResourceStatus,
		}
	}
	return Marshal(b)
}

// RowMetadata is the source's ObjectMeta with the times of our row. A bundle
// that an operator removed without a deletion request has the time of its
// removal.
func RowMetadata(metadata json.RawMessage, d store.Document) (json.RawMessage, error) {
	if len(metadata) == 0 {
		return nil, nil
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(metadata, &m); err != nil {
		return nil, fmt.Errorf("reading the metadata of bundle %s: %w", d.ID, err)
	}
	if m == nil {
		return nil, nil
	}
	m["creationTimestamp"] = stamp(d.CreatedAt)
	delete(m, "deletionTimestamp")
	switch {
	case d.DeletedAt != nil:
		m["deletionTimestamp"] = stamp(*d.DeletedAt)
	case d.Removed:
		m["deletionTimestamp"] = stamp(d.UpdatedAt)
	}
	return Marshal(m)
}

// stamp is a time as Kubernetes writes it.
func stamp(t time.Time) json.RawMessage {
	return json.RawMessage(t.UTC().Format(`"` + time.RFC3339 + `"`))
}

// WithName is the source's ObjectMeta as it goes to agents: the work is called
// by its id there.
func WithName(metadata json.RawMessage, id work.ID) (json.RawMessage, error) {
	if len(metadata) == 0 {
		return nil, nil
	}
	m := map[string]json.RawMessage{}
	if err := json.Unmarshal(metadata, &m); err != nil {
		return nil, fmt.Errorf("reading the metadata of bundle %s: %w", id, err)
	}
	if m == nil {
		return nil, nil
	}
	name, err := json.Marshal(id)
	if err != nil {
		return nil, err
	}
	m["name"] = name
	return Marshal(m)
}

// Marshal is json.Marshal without escaping < as \u003c, so that Maestro passes text on
// unchanged.
func Marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}
