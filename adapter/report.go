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
	// Health are rules that make Health False after a run that succeeded.
	Health []ReasonRule `yaml:"health"`
	Data   Value        `yaml:"data"`
}

// ReportedWork names the object of a ManifestWork that the report is about, and how the engine reads its state.
type ReportedWork struct {
	Place    Place
	Resource string `yaml:"resource"` // the task's resource that is the ManifestWork
	Object   string `yaml:"object"`   // a nested discovery of the resource
	Ready    string `yaml:"ready"`    // the object's condition that makes Available
	// Unversioned determines whether a condition without observedGeneration counts for the object's
	// present generation: counts (default) or ignored.
	Unversioned string       `yaml:"unversioned"`
	Subject     string       `yaml:"subject"` // of messages: "it" by default
	Waiting     *ReasonRule  `yaml:"waiting"` // while targetCluster is ""
	Pending     *ReasonRule  `yaml:"pending"` // while the object has no Ready condition
	Ladder      []ReasonRule `yaml:"ladder"`  // rules between the standard ones
	// Blockers keep Finalized False. By default the work itself is the only one.
	Blockers []ReasonRule `yaml:"blockers"`
}

// ReasonRule is one step of a ladder: the first whose If holds gives a condition its reason and message.
type ReasonRule struct {
	Place   Place
	AheadOf string `yaml:"ahead_of"` // in a ladder: the standard rule that follows
	If      Text   `yaml:"if"`       // expression
	Reason  Value  `yaml:"reason"`   // template, or {expression}
	Message Value  `yaml:"message"`  // template, or {expression}
}

// ReportConditions are written out where the standard ones do not fit.
type ReportConditions struct {
	Place     Place
	Applied   *ReasonRule `yaml:"Applied"`
	Available *ReasonRule `yaml:"Available"`
	Health    *ReasonRule `yaml:"Health"`
	Finalized *ReasonRule `yaml:"Finalized"`
}

// standardReasons are the rules of the ladder of a ManifestWork in their order, by the names that
// ahead_of takes.
var standardReasons = []string{"waiting", "failed", "refused", "ordered", "updating", "reported", "pending"}

// variableName is a name that expressions can write.
var variableName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// engineNames are bound by the engine for the phase after the resources of a task with a report.
var engineNames = []string{"work", "failed"}

// checkReport checks the structure of a standard report.
func (c *checker) checkReport(t *Task) {
	r := t.Post.Report
	if r == nil {
		return
	}
	c.require(r.Place, "url", r.URL.Value)
	for _, name := range t.boundNames() {
		if slices.Contains(engineNames, name) {
			c.add(r.Place, "", "the engine binds %q for the report; name the task's own otherwise", name)
		}
	}
	c.checkConditionOverride(r.Conditions.Applied)
	c.checkConditionOverride(r.Conditions.Available)
	c.checkConditionOverride(r.Conditions.Health)
	c.checkConditionOverride(r.Conditions.Finalized)
	for _, rule := range r.Health {
		c.checkReasonRule(rule)
		c.rejectAheadOf(rule)
	}
	w := r.Work
	if w == nil {
		if r.Conditions.Applied == nil || r.Conditions.Available == nil || r.Conditions.Finalized == nil {
			c.add(r.Place, "conditions", "without work, Applied, Available and Finalized are required")
		}
		return
	}
	c.checkReportedWork(t, w)
}

func (c *checker) checkReportedWork(t *Task, w *ReportedWork) {
	c.require(w.Place, "ready", w.Ready)
	c.require(w.Place, "object", w.Object)
	c.requireOneOf(w.Place, "unversioned", w.Unversioned, "counts", "ignored")
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
	for _, rule := range w.Ladder {
		c.checkReasonRule(rule)
		c.require(rule.Place, "ahead_of", rule.AheadOf)
		c.requireOneOf(rule.Place, "ahead_of", rule.AheadOf, standardReasons...)
	}
	for _, rule := range w.Blockers {
		c.checkReasonRule(rule)
		c.rejectAheadOf(rule)
	}
	for _, rule := range []*ReasonRule{w.Waiting, w.Pending} {
		if rule == nil {
			continue
		}
		c.rejectAheadOf(*rule)
		if rule.If.Value != "" {
			c.add(rule.Place, "if", "the engine decides when this rung holds")
		}
		if !rule.Reason.Set() {
			c.add(rule.Place, "reason", "it is required")
		}
	}
}

// checkConditionOverride checks a condition that is written out.
func (c *checker) checkConditionOverride(rule *ReasonRule) {
	if rule != nil {
		c.checkReasonRule(*rule)
		c.rejectAheadOf(*rule)
	}
}

func (c *checker) checkReasonRule(r ReasonRule) {
	c.require(r.Place, "if", r.If.Value)
	if !r.Reason.Set() {
		c.add(r.Place, "reason", "it is required")
	}
}

func (c *checker) rejectAheadOf(r ReasonRule) {
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
