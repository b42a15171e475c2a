package adapter

import (
	"regexp"
	"slices"
)

// Report is the standard status report: the engine builds Applied, Available, Health and Finalized,
// and sends them with PUT to URL after the post actions. An addition to HyperFleet's language; its
// reference is docs/adapters.md, the reasons are in decision 069.
//
// The task defines the names generation and is_deleting. With Work it also defines targetCluster
// (the management cluster, "" while there is none) and before (the adapter's last report, {}
// without one).
type Report struct {
	Place Place
	URL   Text `yaml:"url"` // template
	// Work is the ManifestWork that the report is about. Without it Conditions has at least Applied
	// and Available.
	Work *ReportedWork `yaml:"work"`
	// Conditions replace the standard ones.
	Conditions ReportConditions `yaml:"conditions"`
	// Health are rungs that make Health False after a run that succeeded.
	Health []Rung `yaml:"health"`
	Data   Value  `yaml:"data"`
}

// ReportedWork says which object of a ManifestWork the report is about, and how its state is read.
type ReportedWork struct {
	Place    Place
	Resource string `yaml:"resource"` // the task's resource that is the ManifestWork
	Object   string `yaml:"object"`   // a nested discovery of the resource
	Ready    string `yaml:"ready"`    // the object's condition that makes Available
	// Unversioned says whether a condition without observedGeneration counts for the object's
	// present generation: counts (default) or ignored.
	Unversioned string `yaml:"unversioned"`
	Subject     string `yaml:"subject"` // of messages: "it" by default
	Waiting     *Rung  `yaml:"waiting"` // while targetCluster is ""
	Pending     *Rung  `yaml:"pending"` // while the object has no Ready condition
	Ladder      []Rung `yaml:"ladder"`  // rungs between the standard ones
	// Blockers keep Finalized False. By default the work itself is the only one.
	Blockers []Rung `yaml:"blockers"`
}

// Rung is one step of a ladder: the first whose If holds gives a condition its reason and message.
type Rung struct {
	Place   Place
	AheadOf string `yaml:"ahead_of"` // in a ladder: the standard rung that follows
	If      Text   `yaml:"if"`       // expression
	Reason  Value  `yaml:"reason"`   // template, or {expression}
	Message Value  `yaml:"message"`  // template, or {expression}
}

// ReportConditions are written out where the standard ones do not fit.
type ReportConditions struct {
	Place     Place
	Applied   *Rung `yaml:"Applied"`
	Available *Rung `yaml:"Available"`
	Health    *Rung `yaml:"Health"`
	Finalized *Rung `yaml:"Finalized"`
}

// standardRungs are the rungs of the ladder of a ManifestWork in their order, by the names that
// ahead_of takes.
var standardRungs = []string{"waiting", "failed", "refused", "ordered", "updating", "reported", "pending"}

// variableName is a name that expressions can write.
var variableName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// engineNames are bound by the engine for the phase after the resources of a task with a report.
var engineNames = []string{"work", "failed"}

// report checks the structure of a standard report.
func (c *checker) report(t *Task) {
	r := t.Post.Report
	if r == nil {
		return
	}
	c.need(r.Place, "url", r.URL.Value)
	for _, name := range t.boundNames() {
		if slices.Contains(engineNames, name) {
			c.add(r.Place, "", "the engine binds %q for the report; name the task's own otherwise", name)
		}
	}
	c.conditionOverride(r.Conditions.Applied)
	c.conditionOverride(r.Conditions.Available)
	c.conditionOverride(r.Conditions.Health)
	c.conditionOverride(r.Conditions.Finalized)
	for _, rung := range r.Health {
		c.rung(rung)
		c.noPlacement(rung)
	}
	w := r.Work
	if w == nil {
		if r.Conditions.Applied == nil || r.Conditions.Available == nil || r.Conditions.Finalized == nil {
			c.add(r.Place, "conditions", "without work, Applied, Available and Finalized are required")
		}
		return
	}
	c.reportedWork(t, w)
}

func (c *checker) reportedWork(t *Task, w *ReportedWork) {
	c.need(w.Place, "ready", w.Ready)
	c.need(w.Place, "object", w.Object)
	c.oneOf(w.Place, "unversioned", w.Unversioned, "counts", "ignored")
	if w.Waiting == nil || w.Pending == nil {
		c.add(w.Place, "", "waiting and pending are required")
	}
	i := slices.IndexFunc(t.Resources, func(r Resource) bool { return r.Name == w.Resource })
	switch {
	case w.Resource == "" || i < 0:
		c.add(w.Place, "resource", "there is no resource %q", w.Resource)
	case !slices.ContainsFunc(t.Resources[i].Nested, func(n NestedDiscovery) bool { return n.Name == w.Object }):
		c.add(w.Place, "object", "the resource %s has no nested discovery %q", w.Resource, w.Object)
	}
	for _, rung := range w.Ladder {
		c.rung(rung)
		c.need(rung.Place, "ahead_of", rung.AheadOf)
		c.oneOf(rung.Place, "ahead_of", rung.AheadOf, standardRungs...)
	}
	for _, rung := range w.Blockers {
		c.rung(rung)
		c.noPlacement(rung)
	}
	for _, rung := range []*Rung{w.Waiting, w.Pending} {
		if rung == nil {
			continue
		}
		c.noPlacement(*rung)
		if rung.If.Value != "" {
			c.add(rung.Place, "if", "the engine decides when this rung holds")
		}
		if !rung.Reason.Set() {
			c.add(rung.Place, "reason", "it is required")
		}
	}
}

// conditionOverride checks a condition that is written out.
func (c *checker) conditionOverride(rung *Rung) {
	if rung != nil {
		c.rung(*rung)
		c.noPlacement(*rung)
	}
}

func (c *checker) rung(r Rung) {
	c.need(r.Place, "if", r.If.Value)
	if !r.Reason.Set() {
		c.add(r.Place, "reason", "it is required")
	}
}

func (c *checker) noPlacement(r Rung) {
	if r.AheadOf != "" {
		c.add(r.Place, "ahead_of", "it belongs to rungs of ladder")
	}
}

// boundNames are all names that the task binds for expressions.
func (t *Task) boundNames() (names []string) {
	for _, p := range t.Params {
		names = append(names, p.Name)
		for _, x := range p.Let {
			names = append(names, x.Name)
		}
	}
	for _, p := range t.Preconditions {
		for _, k := range p.Capture {
			names = append(names, k.Name)
		}
	}
	for _, x := range t.Post.Let {
		names = append(names, x.Name)
	}
	for _, p := range t.Post.Payloads {
		names = append(names, p.Name)
	}
	return names
}
