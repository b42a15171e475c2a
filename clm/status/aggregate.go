package status

import (
	"fmt"
	"slices"
	"strings"
	"time"
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

// Resource is what of a resource its conditions depend on.
type Resource struct {
	Generation int32
	UpdatedAt  time.Time // of the spec, not of the conditions
	Deleting   bool
	Children   bool     // some are left
	Required   []string // adapters that have to report
}

// Aggregate works out the conditions of a resource from the reports that are
// stored, in any order, and from the conditions that it has: Reconciled,
// LastKnownReconciled, and one for each required adapter, in that order.
//
// A report counts if it says that it is Available or not, of a generation that
// exists.
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

// AnyCounts reports whether some adapter has said whether it is Available.
func AnyCounts(reports []Report) bool {
	return slices.ContainsFunc(reports, func(r Report) bool {
		v := r.condition(Available)
		return v == True || v == False
	})
}

// aggregation is one call of Aggregate: reports are those that count, at most
// one for each required adapter, sorted by its name.
type aggregation struct {
	Resource
	reports  []Report
	previous []Condition
}

func (a *aggregation) before(kind string) *Condition {
	i := slices.IndexFunc(a.previous, func(c Condition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &a.previous[i]
}

// reconciled says whether all required adapters have done their work for the
// present generation.
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
			reporting = append(reporting, name)
		}
		current := ok && report.Generation == a.Generation
		if current {
			updated = earlier(updated, report.ObservedAt)
		}
		if !current || report.condition(wanted) != True {
			missing = append(missing, name)
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
	case a.Deleting && a.Children:
		c.Reason = Given("ReconciledWaitingForChildren")
		c.Message = Given("Deletion in progress. All required adapters reported Finalized=True but child resources still " +
			"exist")
	default:
		c.Status = True
		c.Reason = Given("ReconciledAll")
		c.Message = Given("All required adapters reported Available=True or Finalized=True at the current generation")
	}
	before := a.before(Reconciled)
	a.dated(&c, before)
	// A change of the spec is the moment at which it stopped being true, not
	// the first report that says so.
	if before != nil && before.Status == True && c.Status == False && a.Generation > before.ObservedGeneration {
		c.LastTransitionTime = a.UpdatedAt
	}
	return c
}

// lastKnown says whether the resource was good at some generation, and stays
// while adapters pass to the next one.
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
		c.Reason, c.Message = Given("AdapterReportedNotAvailable"), Given("One or more required adapters report Available=False")
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
	a.dated(&c, before)
	return c
}

// adapter mirrors what one adapter says.
func (a *aggregation) adapter(r Report) Condition {
	available, _ := r.reported(Available)
	c := Condition{
		Type: AdapterCondition(
			r.Adapter), Status: available.Status, Reason: available.Reason, Message: available.Message,
		ObservedGeneration: r.Generation, LastUpdatedTime: r.ObservedAt,
	}
	a.dated(&c, a.before(c.Type))
	return c
}

// AdapterCondition is the type of an adapter's condition: of "my-adapter" it is
// MyAdapterSuccessful.
func AdapterCondition(adapter string) string {
	var b strings.Builder
	for _, part := range strings.Split(adapter, "-") {
		if part != "" {
			b.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return b.String() + "Successful"
}

// dated gives a condition the times that follow from the one before it.
func (a *aggregation) dated(c *Condition, before *Condition) {
	c.CreatedTime, c.LastTransitionTime = a.UpdatedAt, c.LastUpdatedTime
	if before == nil {
		return
	}
	c.CreatedTime = before.CreatedTime
	if before.Status == c.Status {
		c.LastTransitionTime = before.LastTransitionTime
	}
}

func (a *aggregation) reportOf(adapter string) (Report, bool) {
	i := slices.IndexFunc(a.reports, func(r Report) bool { return r.Adapter == adapter })
	if i < 0 {
		return Report{}, false
	}
	return a.reports[i], true
}

func unavailable(r Report) bool { return r.condition(Available) == False }

// failedAt says whether a required adapter was not available at a generation.
func (a *aggregation) failedAt(generation int32) bool {
	return slices.ContainsFunc(a.reports, func(r Report) bool { return r.Generation == generation && unavailable(r) })
}

// firstAt is the time of the first of the reports at a generation.
func (a *aggregation) firstAt(generation int32) (first time.Time) {
	for _, r := range a.reports {
		if r.Generation == generation {
			first = earlier(first, r.ObservedAt)
		}
	}
	return first
}

// earlier is the first of two times; zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// Removable says whether the report that has just been stored completes a
// deletion: nothing is left of the resource, and of what belongs to it. present
// says that children exist, deleted ones among them.
func Removable(r Resource, reports []Report, present bool) bool {
	if !r.Deleting || present {
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
