package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"atoll.dev/cluster"
)

// Condition is one condition of a resource, in its wire form.
type Condition struct {
	Type               string    `json:"type"`
	Status             Value     `json:"status"`
	Reason             Text      `json:"reason,omitzero"`
	Message            Text      `json:"message,omitzero"`
	ObservedGeneration int32     `json:"observed_generation"`
	CreatedTime        time.Time `json:"created_time"`
	LastUpdatedTime    time.Time `json:"last_updated_time"`
	LastTransitionTime time.Time `json:"last_transition_time"`
}

// Types of conditions that a resource has of itself.
const (
	Reconciled          = "Reconciled"
	LastKnownReconciled = "LastKnownReconciled"
)

// Children is whether a resource has children. Children that are being deleted count.
type Children int

// The values of Children.
const (
	NoChildren Children = iota
	HasChildren
)

// Resource has the properties of a resource on which its conditions depend.
type Resource struct {
	Generation int32
	UpdatedAt  time.Time // of the spec, not of the conditions
	Deleting   bool
	Children   Children
	Required   []cluster.Adapter // adapters that must report
}

// Aggregate computes the conditions of a resource from its stored reports, in any
// order, and from its previous conditions: Reconciled, LastKnownReconciled, and one for
// each required adapter that has a report that counts, in that order.
//
// A report counts if its condition Available is True or False and its generation is not
// above the resource's.
func Aggregate(r Resource, reports []Report, previous []Condition) []Condition {
	a := aggregation{Resource: r, previous: previous}
	names := slices.Clone(r.Required)
	slices.Sort(names)
	a.Required = slices.Compact(names)
	for _, name := range a.Required {
		i := slices.IndexFunc(reports, func(report Report) bool { return report.Adapter == name })
		if i < 0 || reports[i].Generation > r.Generation {
			continue
		}
		if v := reports[i].condition(Available); v == True || v == False {
			a.reports = append(a.reports, reports[i])
		}
	}
	conditions := []Condition{a.reconciled(), a.lastKnown()}
	for _, report := range a.reports {
		conditions = append(conditions, a.adapter(report))
	}
	return conditions
}

// AnyCounts reports whether a report has the condition Available with True or False.
func AnyCounts(reports []Report) bool {
	return slices.ContainsFunc(reports, func(r Report) bool {
		v := r.condition(Available)
		return v == True || v == False
	})
}

// aggregation is one call of Aggregate: reports has the reports that count, at most
// one for each required adapter, sorted by its name.
type aggregation struct {
	Resource
	reports  []Report
	previous []Condition
}

// before returns the previous condition of a type, nil if there is none.
func (a *aggregation) before(kind string) *Condition {
	i := slices.IndexFunc(a.previous, func(c Condition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &a.previous[i]
}

// reconciled makes the condition Reconciled: True if all required adapters have done their
// work for the present generation.
func (a *aggregation) reconciled() Condition {
	wanted := Available
	if a.Deleting {
		wanted = Finalized
	}
	var reporting, missing []string
	updated := time.Time{}
	for _, name := range a.Required {
		report, ok := a.reportOf(name)
		if ok {
			reporting = append(reporting, string(name))
		}
		current := ok && report.Generation == a.Generation
		if current {
			updated = earlier(updated, report.ObservedAt)
		}
		if !current || report.condition(wanted) != True {
			missing = append(missing, string(name))
		}
	}
	if updated.IsZero() {
		updated = a.UpdatedAt
	}
	c := Condition{Type: Reconciled, Status: False, ObservedGeneration: a.Generation, LastUpdatedTime: updated}
	switch {
	case len(missing) > 0 || len(a.Required) == 0:
		c.Reason = Given("ReconciledMissingAdapters")
		c.Message = Given(fmt.Sprintf("Required adapters not reporting %s=True: [%s]. Currently reporting: [%s]",
			wanted, strings.Join(missing, ", "), strings.Join(reporting, ", ")))
	case a.Deleting && a.Children == HasChildren:
		c.Reason = Given("ReconciledWaitingForChildren")
		c.Message = Given("Deletion in progress. All required adapters reported Finalized=True but child resources still " +
			"exist")
	default:
		c.Status = True
		c.Reason = Given("ReconciledAll")
		c.Message = Given("All required adapters reported Available=True or Finalized=True at the current generation")
	}
	before := a.before(Reconciled)
	a.setTimes(&c, before)
	// The condition became False when the spec changed, not at the first report of
	// the new generation.
	if before != nil && before.Status == True && c.Status == False && a.Generation > before.ObservedGeneration {
		c.LastTransitionTime = a.UpdatedAt
	}
	return c
}

// lastKnown makes the condition LastKnownReconciled: True if all required adapters were
// available at one generation. It stays True while adapters go over to the next generation.
func (a *aggregation) lastKnown() Condition {
	before := a.before(LastKnownReconciled)
	wasTrue := before != nil && before.Status == True
	missing := len(a.reports) < len(a.Required)
	failed := slices.ContainsFunc(a.reports, unavailable)
	newest, oldest := int32(0), int32(0)
	for _, r := range a.reports {
		newest = max(newest, r.Generation)
		if oldest == 0 || r.Generation < oldest {
			oldest = r.Generation
		}
	}
	uniform := newest == oldest

	c := Condition{Type: LastKnownReconciled, Status: False, ObservedGeneration: max(newest, 1)}
	switch {
	case len(a.Required) == 0:
		c.ObservedGeneration = 1
	case missing:
		if newest == 0 && before != nil {
			c.ObservedGeneration = before.ObservedGeneration
		}
	case !failed && uniform:
		c.Status = True
	case !failed && wasTrue, wasTrue && !a.failedAt(before.ObservedGeneration):
		c.Status, c.ObservedGeneration = True, before.ObservedGeneration
	}

	switch {
	case c.Status == True:
		c.Reason, c.Message = Given("AllAdaptersReconciled"),
			Given("All required adapters report Available=True for the tracked generation")
	case len(a.Required) == 0 || missing:
		c.Reason, c.Message = Given("AdaptersMissingReports"), Given("Required adapters have not yet reported status")
	case failed:
		c.Reason, c.Message = Given("AdapterReportedNotAvailable"),
			Given("One or more required adapters report Available=False")
	default:
		c.Reason, c.Message = Given("AdaptersNotAtSameGeneration"),
			Given("Required adapters do not report a consistent Available state")
	}

	switch {
	case len(a.Required) == 0:
		c.LastUpdatedTime = a.UpdatedAt
	case c.Status == True && !failed && uniform, c.Status == False && a.failedAt(c.ObservedGeneration):
		c.LastUpdatedTime = a.firstAt(c.ObservedGeneration)
	case before != nil:
		c.LastUpdatedTime = before.LastUpdatedTime
	default:
		c.LastUpdatedTime = a.UpdatedAt
	}
	a.setTimes(&c, before)
	return c
}

// adapter makes the condition of one adapter from its report.
func (a *aggregation) adapter(r Report) Condition {
	available, _ := r.reported(Available)
	c := Condition{
		Type: AdapterCondition(
			r.Adapter), Status: available.Status, Reason: available.Reason, Message: available.Message,
		ObservedGeneration: r.Generation, LastUpdatedTime: r.ObservedAt,
	}
	a.setTimes(&c, a.before(c.Type))
	return c
}

// AdapterCondition returns the type of an adapter's condition: MyAdapterSuccessful for
// "my-adapter".
func AdapterCondition(adapter cluster.Adapter) string {
	var b strings.Builder
	for _, part := range strings.Split(string(adapter), "-") {
		if part != "" {
			b.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return b.String() + "Successful"
}

// setTimes sets the creation and transition times of a condition: they are those of the
// previous condition of its type, or new if there is none or its status has changed.
func (a *aggregation) setTimes(c *Condition, before *Condition) {
	c.CreatedTime, c.LastTransitionTime = a.UpdatedAt, c.LastUpdatedTime
	if before == nil {
		return
	}
	c.CreatedTime = before.CreatedTime
	if before.Status == c.Status {
		c.LastTransitionTime = before.LastTransitionTime
	}
}

// reportOf returns the report of an adapter that counts; false if there is none.
func (a *aggregation) reportOf(adapter cluster.Adapter) (Report, bool) {
	i := slices.IndexFunc(a.reports, func(r Report) bool { return r.Adapter == adapter })
	if i < 0 {
		return Report{}, false
	}
	return a.reports[i], true
}

func unavailable(r Report) bool { return r.condition(Available) == False }

// failedAt reports whether a required adapter was not available at a generation.
func (a *aggregation) failedAt(generation int32) bool {
	return slices.ContainsFunc(a.reports, func(r Report) bool { return r.Generation == generation && unavailable(r) })
}

// firstAt returns the time of the first report at a generation.
func (a *aggregation) firstAt(generation int32) (first time.Time) {
	for _, r := range a.reports {
		if r.Generation == generation {
			first = earlier(first, r.ObservedAt)
		}
	}
	return first
}

// earlier returns the first of two times; a zero time counts as none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// Removable reports whether the deletion of a resource is complete: all required adapters
// have reported Finalized=True at the present generation, and no children are left.
func Removable(r Resource, reports []Report) bool {
	if !r.Deleting || r.Children == HasChildren {
		return false
	}
	for _, name := range r.Required {
		i := slices.IndexFunc(reports, func(report Report) bool { return report.Adapter == name })
		if i < 0 || reports[i].Generation != r.Generation || reports[i].condition(Finalized) != True {
			return false
		}
	}
	return true
}
