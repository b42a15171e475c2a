package original

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/maestro/bundle"
)

// rowTime is a time in a table of openshift-online/maestro, with or without a zone.
type rowTime struct{ time.Time }

func (t *rowTime) UnmarshalJSON(data []byte) (err error) {
	var text string
	if err := json.Unmarshal(data, &text); err != nil || text == "" {
		return err
	}
	if t.Time, err = time.Parse(time.RFC3339Nano, text); err != nil {
		t.Time, err = time.Parse("2006-01-02T15:04:05.999999999", text)
	}
	return err
}

// baseRow has the columns that all tables of openshift-online/maestro have.
type baseRow struct {
	ID        string   `json:"id"`
	CreatedAt *rowTime `json:"created_at"`
	UpdatedAt *rowTime `json:"updated_at"`
	DeletedAt *rowTime `json:"deleted_at"`
}

// times returns the times of a row. A missing time of creation is now; a missing time of the last
// update is that of the creation.
func (r baseRow) times() (created, updated time.Time) {
	created = time.Now()
	if r.CreatedAt != nil && !r.CreatedAt.IsZero() {
		created = r.CreatedAt.Time
	}
	updated = created
	if r.UpdatedAt != nil && r.UpdatedAt.After(created) {
		updated = r.UpdatedAt.Time
	}
	return created, updated
}

// resourceRow is a bundle in the table resources. Payload and status are whole CloudEvents.
type resourceRow struct {
	baseRow
	Name     string                     `json:"name"`
	Source   string                     `json:"source"`
	Consumer string                     `json:"consumer_name"`
	Version  int64                      `json:"version"`
	Payload  map[string]json.RawMessage `json:"payload"`
	Status   map[string]json.RawMessage `json:"status"`
}

// spec converts the payload to a bundle's spec.
func (r *resourceRow) spec() (bundle.Spec, error) {
	e := cloudEvent(r.Payload)
	s := bundle.Spec{
		EventID: e.text("id"), Source: r.Source, SpecVersion: "1.0", Type: e.text(
			"type"), Time: e.time(), ContentType: "application/json",
		Consumer: work.Consumer(r.Consumer), ID: work.ID(r.ID), Version: r.Version, LogTracing: e.text("logtracing"),
		Data: e["data"],
	}
	if s.Type == "" {
		s.Type = work.SpecCreate
	}
	if err := bundle.CheckID(work.ID(r.ID)); err != nil {
		return s, err
	}
	switch {
	case r.Version < 1:
		return s, fmt.Errorf("its version is %d", r.Version)
	case r.Source == "":
		return s, errors.New("it has no source")
	case len(r.Payload) == 0:
		return s, errors.New("it has no payload")
	case e.text(work.ExtResourceID) != "" && e.text(work.ExtResourceID) != r.ID:
		return s, fmt.Errorf("its payload is of %q", e.text(work.ExtResourceID))
	case e.text(work.ExtClusterName) != "" && e.text(work.ExtClusterName) != r.Consumer:
		return s, fmt.Errorf("its payload is for consumer %q", e.text(work.ExtClusterName))
	}
	metadata := string(e[work.ExtMetadata])
	if text := e.text(work.ExtMetadata); text != "" { // a string that holds the object
		metadata = text
	}
	if metadata == "null" {
		metadata = ""
	}
	var err error
	if s.Metadata, err = bundle.CheckMetadata(metadata); err != nil {
		return s, err
	}
	return s, bundle.CheckHeldData(s.Data)
}

// status converts their status. For a status that cannot be used it returns the zero
// record and a note; the agent reports that status again.
func (r *resourceRow) status() (bundle.Status, []string) {
	e := cloudEvent(r.Status)
	if len(e) == 0 || len(e["data"]) == 0 || string(e["data"]) == "null" {
		return bundle.Status{}, nil
	}
	version, err := e.number(work.ExtResourceVersion)
	if err != nil || version < 1 || version > r.Version {
		return bundle.Status{}, []string{fmt.Sprintf(
			"its status is of version %d, which cannot be; its agent is asked again", version)}
	}
	s := bundle.Status{
		EventID: e.text("id"), Source: e.text("source"), SpecVersion: "1.0", Type: e.text(
			"type"), Time: e.time(), ContentType: "application/json",
		Consumer: work.Consumer(r.Consumer), ID: work.ID(r.ID), Version: version,
		OriginalSource: e.text(work.ExtOriginalSource),
		Sequence:       e.text(work.ExtSequenceID), Hash: e.text(work.ExtStatusHash),
	}
	if s.Data, err = bundle.WithoutBundle(e["data"]); err != nil {
		return bundle.Status{}, []string{"its status cannot be read; its agent is asked again"}
	}
	return s, nil
}

// cloudEvent is a CloudEvent as one JSON object.
type cloudEvent map[string]json.RawMessage

// text returns a member that is a string, and "" for every other member.
func (e cloudEvent) text(name string) string {
	var s string
	if json.Unmarshal(e[name], &s) != nil {
		return ""
	}
	return s
}

// number returns a member that is a number, or a string with a number.
func (e cloudEvent) number(name string) (n int64, err error) {
	raw := e[name]
	if s := e.text(name); s != "" {
		raw = json.RawMessage(s)
	}
	err = json.Unmarshal(raw, &n)
	return n, err
}

func (e cloudEvent) time() *time.Time {
	t, err := time.Parse(time.RFC3339Nano, e.text("time"))
	if err != nil {
		return nil
	}
	return &t
}
