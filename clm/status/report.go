package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"atoll.dev/cluster"
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
// report; Finalized=True means that nothing of a deleted resource is left.
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

// Report is one adapter's report on one resource, in its wire form. The latest report of
// each adapter is stored.
type Report struct {
	Adapter    cluster.Adapter `json:"adapter"`
	Generation int32           `json:"observed_generation"` // of the resource that the adapter saw
	Conditions []Reported      `json:"conditions"`
	Data       json.RawMessage `json:"data,omitempty"`     // an object
	Metadata   json.RawMessage `json:"metadata,omitempty"` // likewise
	CreatedAt  time.Time       `json:"created_time"`       // when the adapter's first report came
	ObservedAt time.Time       `json:"last_report_time"`   // by the adapter's clock, to the microsecond
	// ReceivedAt is when this server received a report whose adapter's clock is more than
	// Ahead before this server's; nil for other reports.
	ReceivedAt *time.Time `json:"received_time,omitempty"`
	// Recent has the adapter's last stored reports in a short form, this one first, so
	// that a repeated report gets its first answer. It is stored, and no answer shows it.
	Recent []Recent `json:"recent,omitempty"`
}

// condition returns the value of a condition, "" if the report has none.
func (r Report) condition(kind string) Value {
	c, _ := r.reported(kind)
	return c.Status
}

// reported returns a condition of the report by its type; false if the report has none.
func (r Report) reported(kind string) (Reported, bool) {
	i := slices.IndexFunc(r.Conditions, func(c Reported) bool { return c.Type == kind })
	if i < 0 {
		return Reported{}, false
	}
	return r.Conditions[i], true
}

// How far an adapter's clock may differ from this server's.
const (
	MaxAhead  = 5 * time.Minute
	MaxBehind = 30 * time.Minute
	// Ahead is the difference above which a clock counts as wrong. A report by a wrong
	// clock does not keep out later reports by a right clock.
	Ahead = 10 * time.Second
)

// InvalidError names the field of a report that is wrong, and the reason.
type InvalidError struct{ Field, Message string }

// Error implements error.
func (e *InvalidError) Error() string { return e.Field + " " + e.Message }

func invalid(field, format string, args ...any) error {
	return &InvalidError{field, fmt.Sprintf(format, args...)}
}

// Check checks a report's form, before the resource is read. It rounds the time of
// observation to the stored precision, so that all later comparisons see rounded times. A
// report without a time gets the present time. The error is an InvalidError.
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

// checkMetadata checks the members of the metadata for which the contract has a type. It
// ignores other members.
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

// Verdict is the outcome of a report.
type Verdict int

// The verdicts. Discarded is answered with 204, the others with 201.
const (
	Discarded  Verdict = iota // the report is not stored: it is old, or has no opinion
	Repeated                  // the report was sent before and is stored already
	Stored                    // the report is stored; conditions stay, because it has no opinion
	Aggregated                // the report is stored, and conditions are computed from it
)

// String names the verdict.
func (v Verdict) String() string {
	return [...]string{"discarded", "repeated", "stored", "aggregated"}[v]
}

// Tie decides between two different reports of one adapter with the same generation and
// the same time.
type Tie int

// The ties. The original keeps the stored report and answers with it, although
// adapters write their times to the second. An adapter that sends the reports of one
// resource one after the other can ask for TakeLater.
const (
	KeepStored Tie = iota
	TakeLater
)

// Judge decides on a report that passed Check, by the resource's generation and the
// adapter's stored report (nil: none). It returns the report in the form to store, in which
// conditions with an unchanged status keep their transition times.
//
// A repeated report gets the answer of its first copy, as long as it is among the adapter's
// last reports. A report without an opinion (Available=Unknown) is stored only as the
// adapter's first one, and discarded otherwise. A report of a later generation than the
// resource's, or older than the stored one, is discarded. The error is an InvalidError.
func Judge(generation int32, stored *Report, r Report, tie Tie) (Report, Verdict, error) {
	unknown := r.condition(Available) == Unknown
	switch {
	case r.Generation > generation:
		return r, Discarded, nil
	case stored != nil && !unknown && r.same(*stored):
		return *stored, Repeated, nil
	case stored != nil && !unknown && r.repeats(stored.Recent):
		return r.withRecentTimes(*stored), Repeated, nil
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
	next := r.withTransitions(stored)
	next.remember(stored)
	return next, verdict, nil
}

// before reports whether a report was made before the stored one. The original compares
// the adapters' clocks alone, so that a report from the future keeps out all others until
// its time has come. Here a report by a right clock that comes after a report by a wrong
// clock is later, also if its time is earlier.
func (r Report) before(stored Report) bool {
	if r.ReceivedAt == nil && stored.ReceivedAt != nil && !r.ObservedAt.Before(*stored.ReceivedAt) {
		return false
	}
	return r.ObservedAt.Before(stored.ObservedAt)
}

// same reports whether two reports have the same content and time of observation.
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

// SameButTimes reports whether reports and conditions differ at most in their times of
// observation: values, reasons, messages, generations, data and transitions are equal.
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

// withTransitions returns the report with the time of the last transition of each condition:
// the stored one if the status is the same, otherwise the time of this report.
func (r Report) withTransitions(stored *Report) Report {
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
