package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"atoll.dev/internal/jsonvalue"
)

// Value is the status of a reported condition. A resource's own conditions are
// True or False only.
type Value string

// The values of a condition.
const (
	True    Value = "True"
	False   Value = "False"
	Unknown Value = "Unknown"
)

// Types of conditions that adapters report. The first three come with every
// report; Finalized says that nothing of a deleted resource is left.
const (
	Available = "Available"
	Applied   = "Applied"
	Health    = "Health"
	Finalized = "Finalized"
)

// Reported is one condition of a report.
type Reported struct {
	Type               string    `json:"type"`
	Status             Value     `json:"status"`
	Reason             Text      `json:"reason,omitzero"`
	Message            Text      `json:"message,omitzero"`
	LastTransitionTime time.Time `json:"last_transition_time"`
}

// Report is what one adapter says of one resource, in its wire form. Of each
// adapter the latest one is kept.
type Report struct {
	Adapter    string          `json:"adapter"`
	Generation int32           `json:"observed_generation"` // of the resource that the adapter saw
	Conditions []Reported      `json:"conditions"`
	Data       json.RawMessage `json:"data,omitempty"`     // an object
	Metadata   json.RawMessage `json:"metadata,omitempty"` // likewise
	CreatedAt  time.Time       `json:"created_time"`       // when the adapter's first report came
	ObservedAt time.Time       `json:"last_report_time"`   // by the adapter's clock, to the microsecond
	// ReceivedAt is when a report came that its adapter's clock has in our
	// future by more than Ahead; nil for others.
	ReceivedAt *time.Time `json:"received_time,omitempty"`
	// Recent are the adapter's last reports that were taken, this one first, in
	// few words: what a repetition of them is answered. It is stored, and not shown.
	Recent []Recent `json:"recent,omitempty"`
}

// condition returns the value of a condition, "" if the report has none.
func (r Report) condition(kind string) Value {
	c, _ := r.reported(kind)
	return c.Status
}

func (r Report) reported(kind string) (Reported, bool) {
	i := slices.IndexFunc(r.Conditions, func(c Reported) bool { return c.Type == kind })
	if i < 0 {
		return Reported{}, false
	}
	return r.Conditions[i], true
}

// How far an adapter's clock may be from ours.
const (
	MaxAhead  = 5 * time.Minute
	MaxBehind = 30 * time.Minute
	// Ahead is from when on a clock counts as wrong. A report of a wrong clock
	// does not keep out later ones of a right clock.
	Ahead = 10 * time.Second
)

// InvalidError says which field of a report is wrong, and why.
type InvalidError struct{ Field, Message string }

// Error implements error.
func (e *InvalidError) Error() string { return e.Field + " " + e.Message }

func invalid(field, format string, args ...any) error {
	return &InvalidError{field, fmt.Sprintf(format, args...)}
}

// Check checks a report's form, before anything is read. It rounds the time of
// observation to what is stored, once and here, so that all later comparisons
// are of equals. A report without a time is one of now.
func (r *Report) Check(now time.Time) error {
	if r.ObservedAt.IsZero() {
		r.ObservedAt = now
	}
	r.ObservedAt = r.ObservedAt.UTC().Truncate(time.Microsecond)
	for _, object := range []*json.RawMessage{&r.Data, &r.Metadata} {
		if string(bytes.TrimSpace(*object)) == "null" {
			*object = nil
		}
	}
	switch {
	case r.Adapter == "":
		return invalid("adapter", "is required")
	case r.Generation < 1:
		return invalid("observed_generation", "must be at least 1")
	case r.ObservedAt.After(now.Add(MaxAhead)):
		return invalid("observed_time", "lies more than %s in the future", MaxAhead)
	case r.ObservedAt.Before(now.Add(-MaxBehind)):
		return invalid("observed_time", "lies more than %s in the past", MaxBehind)
	case !isObject(r.Data):
		return invalid("data", "must be an object")
	}
	if err := checkMetadata(r.Metadata); err != nil {
		return err
	}
	seen := make(map[string]bool, len(r.Conditions))
	for i, c := range r.Conditions {
		field := fmt.Sprintf("conditions[%d]", i)
		switch {
		case c.Type == "":
			return invalid(field+".type", "is required")
		case seen[c.Type]:
			return invalid(field+".type", "is a duplicate condition type: %s", c.Type)
		case c.Status != True && c.Status != False && c.Status != Unknown:
			return invalid(field+".status", "must be True, False or Unknown, not %q", c.Status)
		}
		seen[c.Type] = true
	}
	if r.ReceivedAt = nil; r.ObservedAt.After(now.Add(Ahead)) {
		at := now.UTC().Truncate(time.Microsecond)
		r.ReceivedAt = &at
	}
	return nil
}

// isObject reports whether JSON is an object, or absent.
func isObject(data json.RawMessage) bool {
	data = bytes.TrimSpace(data)
	return len(data) == 0 || data[0] == '{'
}

// checkMetadata checks the members of the metadata that the contract gives a
// type. Others are kept as they are.
func checkMetadata(data json.RawMessage) error {
	if !isObject(data) {
		return invalid("metadata", "must be an object")
	}
	if len(data) == 0 {
		return nil
	}
	var known struct {
		Attempt       *int32     `json:"attempt"`
		JobName       *string    `json:"job_name"`
		JobNamespace  *string    `json:"job_namespace"`
		Duration      *string    `json:"duration"`
		StartedTime   *time.Time `json:"started_time"`
		CompletedTime *time.Time `json:"completed_time"`
	}
	if err := json.Unmarshal(data, &known); err != nil {
		return invalid("metadata", "has a member of another type: %s", err)
	}
	return nil
}

// Verdict is what becomes of a report.
type Verdict int

// The verdicts. Discarded is answered with 204, the others with 201.
const (
	Discarded  Verdict = iota // it says nothing that is new
	Repeated                  // it is the stored one, sent again
	Stored                    // kept, and no reason to aggregate: nothing is known yet
	Aggregated                // kept, and the conditions follow from it
)

// String names the verdict.
func (v Verdict) String() string {
	return [...]string{"discarded", "repeated", "stored", "aggregated"}[v]
}

// Tie says which of two different reports of one adapter counts that have the
// same generation and the same time.
type Tie int

// The ties. The original keeps the stored report and answers with it, although
// adapters write their times to the second. A reporter that sends the reports of
// one resource one after the other can ask for the later one.
const (
	KeepStored Tie = iota
	TakeLater
)

// Judge decides on a report that passed Check, by the resource's generation and
// the adapter's stored report (nil: none). It returns the report as it is to be
// stored, with the transition times of conditions that did not change.
//
// A stored report that is sent again gets the answer that it got, and so do the
// adapter's last few reports. One without an opinion (Available=Unknown) counts
// only as the adapter's first, and is discarded when it is sent again.
func Judge(generation int32, stored *Report, r Report, tie Tie) (Report, Verdict, error) {
	unknown := r.condition(Available) == Unknown
	switch {
	case r.Generation > generation:
		return r, Discarded, nil
	case stored != nil && !unknown && r.same(*stored):
		return *stored, Repeated, nil
	case stored != nil && !unknown && r.repeats(stored.Recent):
		return r.answered(*stored), Repeated, nil
	case stored != nil && (r.Generation < stored.Generation || r.Generation == stored.Generation && r.before(*stored)):
		return r, Discarded, nil
	}
	for _, kind := range []string{Available, Applied, Health} {
		if _, ok := r.reported(kind); !ok {
			return r, Discarded, invalid("conditions",
				"is missing mandatory condition '%s': every report has Available, Applied and Health", kind)
		}
	}
	switch {
	case stored != nil && unknown:
		return r, Discarded, nil
	case stored != nil && tie == KeepStored && r.Generation == stored.Generation &&
		r.ObservedAt.Equal(stored.ObservedAt):
		return *stored, Repeated, nil
	}
	verdict := Aggregated
	if unknown {
		verdict = Stored
	}
	next := r.following(stored)
	next.remember(stored)
	return next, verdict, nil
}

// before says whether a report was made before the stored one. The original
// goes by the adapters' clocks alone, so that a report from the future kept all
// others out until its time came. Here one that comes by a right clock after it
// is later, whatever time the wrong clock had.
func (r Report) before(stored Report) bool {
	if r.ReceivedAt == nil && stored.ReceivedAt != nil && !r.ObservedAt.Before(*stored.ReceivedAt) {
		return false
	}
	return r.ObservedAt.Before(stored.ObservedAt)
}

// same says whether two reports say the same, of the same moment.
func (r Report) same(other Report) bool {
	if r.Adapter != other.Adapter || r.Generation != other.Generation || !r.ObservedAt.Equal(other.ObservedAt) ||
		len(r.Conditions) != len(other.Conditions) {
		return false
	}
	for _, c := range r.Conditions {
		o, ok := other.reported(c.Type)
		if !ok || o.Status != c.Status || o.Reason != c.Reason || o.Message != c.Message {
			return false
		}
	}
	return jsonvalue.EqualOptional(r.Data, other.Data) && jsonvalue.EqualOptional(r.Metadata, other.Metadata)
}

// SameButTimes says that reports and conditions differ in nothing but when
// adapters looked: no value, reason, message, generation, data or transition.
func SameButTimes(reports, others []Report, conditions, otherConditions []Condition) bool {
	return slices.EqualFunc(reports, others, func(a, b Report) bool {
		a.ObservedAt, b.ObservedAt = time.Time{}, time.Time{}
		return a.same(b) && (a.ReceivedAt == nil) == (b.ReceivedAt == nil) && slices.EqualFunc(a.Conditions,
			b.Conditions, func(a, b Reported) bool {
				return a.Type == b.Type && a.LastTransitionTime.Equal(b.LastTransitionTime)
			})
	}) && slices.EqualFunc(conditions, otherConditions, func(a, b Condition) bool {
		a.LastUpdatedTime, b.LastUpdatedTime = time.Time{}, time.Time{}
		return a == b
	})
}

// following gives each condition the time of its last transition: the stored
// one's while the status stays, otherwise that of this report.
func (r Report) following(stored *Report) Report {
	r.Conditions = slices.Clone(r.Conditions)
	for i := range r.Conditions {
		c := &r.Conditions[i]
		c.LastTransitionTime = r.ObservedAt
		if stored == nil {
			continue
		}
		if before, ok := stored.reported(c.Type); ok && before.Status == c.Status {
			c.LastTransitionTime = before.LastTransitionTime
		}
	}
	return r
}
