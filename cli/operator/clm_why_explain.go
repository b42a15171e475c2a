package operator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"atoll.dev/api/clm"
	"atoll.dev/api/fleet"
	"atoll.dev/client/clmclient"
)

// resourceFacts are the facts that explain the state of a resource.
type resourceFacts struct {
	Resource clm.Resource
	Reports  []clm.AdapterStatus
	Children []clm.Resource      // set when the resource is being deleted
	History  []clm.HistoryRecord // the latest first

	Placement *fleet.Placement // of a cluster; nil: none
	Now       time.Time
}

// explanation is the output of `clm why`.
type explanation struct {
	ID         string            `json:"id"`
	Kind       string            `json:"kind"`
	Name       string            `json:"name"`
	Generation int32             `json:"generation"`
	Changed    time.Time         `json:"changed"` // when the generation was made
	ChangedBy  string            `json:"changed_by"`
	Deleting   bool              `json:"deleting,omitempty"`
	Reconciled string            `json:"reconciled,omitempty"` // "" when the kind has no required adapters
	Since      *time.Time        `json:"since,omitempty"`
	Message    string            `json:"message,omitempty"`
	Awaited    []dependency      `json:"awaited"`
	Done       []dependency      `json:"done"` // adapters that have reported success
	LastError  *lastError        `json:"last_error,omitempty"`
	Request    *reconcileRequest `json:"asked,omitempty"` // the latest request to reconcile

	Placement *fleet.Placement `json:"placement,omitempty"` // of a cluster
}

// dependency is an adapter or an owned resource that the state of a resource depends on.
type dependency struct {
	From       string    `json:"from"` // adapter, or KIND NAME
	Since      time.Time `json:"since"`
	Generation int32     `json:"generation,omitempty"` // that it reported on last; 0 for none
	What       string    `json:"what"`
}

// lastError is the latest error that an adapter reported.
type lastError struct {
	From string    `json:"from"`
	Time time.Time `json:"time"`
	Text string    `json:"text"`
}

// reconcileRequest is a request to reconcile, as the history records it.
type reconcileRequest struct {
	Time   time.Time `json:"time"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
}

// explainResource explains a resource's state.
func explainResource(f resourceFacts) explanation {
	r := f.Resource
	w := explanation{
		ID: r.ID, Kind: r.Kind, Name: r.Name, Generation: r.Generation, Changed: r.UpdatedTime, ChangedBy: r.UpdatedBy,
		Deleting: r.DeletedTime != nil, Awaited: []dependency{}, Done: []dependency{}, Placement: f.Placement,
	}
	var missing []string
	since := map[string]time.Time{} // as the server reports it
	for _, a := range r.Status.Awaiting {
		missing, since[a.Adapter] = append(missing, a.Adapter), a.Since
	}
	if c := clmclient.Reconciled(r); c != nil {
		w.Reconciled, w.Since, w.Message = c.Status, &c.LastTransitionTime, c.Message
		if missing == nil {
			missing = clmclient.MissingAdapters(c)
		}
	}
	known := map[string]bool{}
	for _, report := range f.Reports {
		known[report.Adapter] = true
		a := explainReport(r, report)
		if at, ok := since[report.Adapter]; ok {
			a.Since = at
		}
		if slices.Contains(missing, report.Adapter) {
			w.Awaited = append(w.Awaited, a)
		} else {
			w.Done = append(w.Done, a)
		}
		if e := findError(report); e != nil && (w.LastError == nil || e.Time.After(w.LastError.Time)) {
			w.LastError = e
		}
	}
	for _, adapter := range missing {
		if !known[adapter] {
			a := dependency{From: adapter, Since: r.UpdatedTime, What: "has never reported"}
			if at, ok := since[adapter]; ok {
				a.Since = at
			}
			w.Awaited = append(w.Awaited, a)
		}
	}
	for _, child := range f.Children {
		a := dependency{From: child.Kind + " " + child.Name, Since: r.UpdatedTime, Generation: child.Generation,
			What: "belongs to this resource and still exists: " + child.ID}
		if child.DeletedTime != nil {
			a.Since = *child.DeletedTime
		}
		w.Awaited = append(w.Awaited, a)
	}
	slices.SortStableFunc(w.Awaited, func(a, b dependency) int {
		return cmp.Or(a.Since.Compare(b.Since),
			strings.Compare(a.From, b.From))
	})
	for _, h := range f.History {
		if h.Action == "reconcile" {
			w.Request = &reconcileRequest{Time: h.Time, By: h.Principal}
			var note struct{ Reason string }
			if json.Unmarshal(h.Note, &note) == nil {
				w.Request.Reason = note.Reason
			}
			break
		}
	}
	return w
}

// explainReport describes an adapter's last report on a resource: its generation, its condition, and since when it has
// that condition.
func explainReport(r clm.Resource, report clm.AdapterStatus) dependency {
	a := dependency{From: report.Adapter, Since: r.UpdatedTime, Generation: report.ObservedGeneration}
	if report.ObservedGeneration < r.Generation {
		a.What = fmt.Sprintf("has not reported on generation %d; its last report was on %d", r.Generation,
			report.ObservedGeneration)
		return a
	}
	goalCondition := "Available"
	if r.DeletedTime != nil {
		goalCondition = "Finalized"
	}
	for _, c := range report.Conditions {
		if c.Type == goalCondition {
			a.What = "reports " + conditionText(c)
			if c.LastTransitionTime.After(a.Since) {
				a.Since = c.LastTransitionTime
			}
			return a
		}
	}
	a.What = "does not report " + goalCondition
	return a
}

// conditionText returns a condition as TYPE=STATUS (REASON: MESSAGE).
func conditionText(c clm.AdapterCondition) string {
	text := c.Type + "=" + c.Status
	if why := strings.Join(slices.DeleteFunc([]string{c.Reason, c.Message}, func(s string) bool { return s == "" }),
		": "); why != "" {
		text += " (" + why + ")"
	}
	return text
}

// findError returns the error of a report, nil when it has none. The condition Health is about the
// adapter, the others are about its work.
func findError(report clm.AdapterStatus) *lastError {
	for _, kind := range []string{"Health", "Applied", "Available"} {
		for _, c := range report.Conditions {
			if c.Type == kind && c.Status == "False" && c.Message != "" {
				return &lastError{From: report.Adapter, Time: report.LastReportTime, Text: conditionText(c)}
			}
		}
	}
	return nil
}
