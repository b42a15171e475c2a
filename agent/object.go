package agent

import (
	"slices"
	"time"

	"atoll.dev/api/work"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
)

// observed is the part of an object that the agent keeps. It never keeps whole
// objects, so that the works bound its memory and not the sizes of their objects.
type observed struct {
	exists   bool
	uid      types.UID
	rv       uint64
	deleting bool
	// fingerprint is a hash of the fields that the API server records for the
	// agent's field managers. It changes when another manager takes, changes or
	// removes one of these fields. So the agent detects drift without comparing
	// content; defaults and fields of other managers do not count.
	fingerprint    string
	owners         []types.UID         // AMWs that own it
	hasOwnMetadata bool                // see appliesMetadata
	feedback       map[string]feedback // by ruleset
}

// object is one object that works apply, wait for or remove.
type object struct {
	key    objectKey
	claims map[work.ID]*manifestState // by the works that apply it
	// waiting works are advanced when the object changes.
	waiting   map[work.ID]bool
	latest    *observed
	sinceStep int // the step since which watches report it

	// reported is the observation that statuses show: latest, or an older one
	// while changes exceed the report rate. See reportable.
	reported   *observed
	reportPace tokenBucket
	reportAt   time.Time // when the works report the latest observation

	// managers are the field managers that works name for the object.
	managers []string

	// expected are the fingerprints that the agent's own writes may leave.
	expected       map[string]bool
	writesInFlight int // applies only

	repairs    int
	lastRepair time.Time
}

// Repairs of one object that follow each other within repairQuiet are spaced, from
// repairFirst on with doubling pauses up to repairMax: two writers that undo each
// other's changes must not flood the API server.
const (
	repairQuiet = time.Minute
	repairFirst = 100 * time.Millisecond
	repairMax   = 30 * time.Second
)

func (c *core) ensureObject(key objectKey) *object {
	o := c.objects[key]
	if o == nil {
		o = &object{key: key, claims: map[work.ID]*manifestState{}, waiting: map[work.ID]bool{},
			expected: map[string]bool{}, sinceStep: c.steps}
		c.objects[key] = o
		c.emit(effObserve{key: key})
	}
	return o
}

func (o *object) expectFingerprint(fingerprint string) { o.expected[fingerprint] = true }

// claim records that the manifest applies its object, and orders an observation of
// the object.
func (c *core) claim(w *workState, m *manifestState) {
	o := c.ensureObject(m.key)
	o.claims[w.id] = m
	m.claimStep = c.steps
	if manager := m.strategy.namedManager(); manager != "" {
		c.addManager(o, manager)
	}
	c.emit(effObserve{m.key, o.rulesets(), o.managers})
}

// addManager includes the fields of a manager in the object's fingerprint, until no
// work uses the object any more.
func (c *core) addManager(o *object, manager string) {
	if slices.Contains(o.managers, manager) {
		return
	}
	o.managers = append(slices.Clone(o.managers), manager) // an effect refers to the old list
	c.emit(effObserve{o.key, o.rulesets(), o.managers})
}

func (c *core) unclaim(w *workState, m *manifestState) {
	if m.waitsForObject != nil {
		c.stopWaitingForObject(*m.waitsForObject, w.id)
		m.waitsForObject = nil
	}
	o := c.objects[m.key]
	if o == nil {
		return
	}
	if now := o.claims[w.id]; now != m {
		if now != nil && m.strategy.writes() && !now.strategy.writes() {
			c.reassignWriter(o)
		}
		return
	}
	delete(o.claims, w.id)
	c.reassignWriter(o)
	c.forgetIfUnused(o)
}

// reassignWriter is called when a work stops applying an object: the object may
// still have its content, and another work must apply it again.
func (c *core) reassignWriter(o *object) {
	if len(o.claims) == 0 || o.writesInFlight > 0 {
		return
	}
	clear(o.expected)
	for id, m := range o.claims {
		if a, ok := c.works[id].applied[o.key]; ok && m.strategy.writes() {
			o.expectFingerprint(a.Fingerprint)
		}
	}
	c.checkDrift(o)
	for id := range o.claims {
		c.wakeAt(c.now.Add(1), id)
	}
}

// waitForObject makes each change of an object advance the work.
func (c *core) waitForObject(key objectKey, id work.ID) { c.ensureObject(key).waiting[id] = true }

func (c *core) stopWaitingForObject(key objectKey, id work.ID) {
	if o := c.objects[key]; o != nil {
		delete(o.waiting, id)
		c.forgetIfUnused(o)
	}
}

func (c *core) forgetIfUnused(o *object) {
	if len(o.claims) == 0 && len(o.waiting) == 0 {
		delete(c.objects, o.key)
		c.emit(effUnobserve{o.key})
	}
}

func (o *object) rulesets() []*ruleset {
	var all []*ruleset
	for _, m := range o.claims {
		if m.rules != nil && !slices.Contains(all, m.rules) {
			all = append(all, m.rules)
		}
	}
	return all
}

// watchScope is the part of each object that a watch brings.
type watchScope int

const (
	watchMetadata watchScope = iota
	watchObjects             // whole objects, which rules must read
)

// watchScope returns how much of each object the watch must read for the manifest.
func (m *manifestState) watchScope() watchScope {
	if m.rules != nil {
		return watchObjects
	}
	return watchMetadata
}

// ensureWatch orders a watch of the kind, unless one with this scope or a larger one runs.
func (c *core) ensureWatch(gvr schema.GroupVersionResource, scope watchScope) {
	ws := c.watches[gvr]
	if ws != nil && ws.scope >= scope {
		return
	}
	c.watches[gvr] = &watchState{scope: scope, sinceStep: c.steps}
	c.emit(effWatch{gvr, scope})
}

// stateUnknown reports whether the state or the feedback values of the manifest's
// object were not observed yet.
func (c *core) stateUnknown(m *manifestState) bool {
	live := c.objects[m.key].latest
	if live == nil || !live.exists || m.rules == nil {
		return live == nil
	}
	_, read := live.feedback[m.rules.key]
	return !read
}

// needsRead reports whether the object's state is unknown and no watch will bring
// it: the watch of the kind began before the object, or its rules, were observed.
func (c *core) needsRead(m *manifestState) bool {
	if !c.stateUnknown(m) {
		return false
	}
	o := c.objects[m.key]
	since := o.sinceStep
	if o.latest != nil {
		since = m.claimStep
	}
	ws := c.watches[m.key.GroupVersionResource]
	return ws != nil && ws.sinceStep < since
}

// keepIfNewer keeps an observation unless a newer one is known, and reports whether
// it did.
func (o *object) keepIfNewer(obs *observed) bool {
	if o.latest != nil && obs.rv < o.latest.rv {
		return false
	}
	if o.latest != nil && obs.rv == o.latest.rv && obs.exists == o.latest.exists {
		// The same version again: it may have values of rules that the other
		// observation lacks.
		merged := *obs
		for k, v := range o.latest.feedback {
			if _, ok := merged.feedback[k]; !ok {
				if merged.feedback == nil {
					merged.feedback = map[string]feedback{}
				}
				merged.feedback[k] = v
			}
		}
		o.latest = &merged
		return true
	}
	o.latest = obs
	return true
}

// handleObservation handles an observation of an object by a watch.
func (c *core) handleObservation(key objectKey, obs *observed) {
	o := c.objects[key]
	if o == nil {
		return
	}
	before, repairs := o.latest, c.repairsOrdered
	if !o.keepIfNewer(obs) {
		return
	}
	if o.writesInFlight == 0 {
		c.checkDrift(o)
	}
	ordered := c.repairsOrdered != repairs
	for id := range o.waiting {
		if w := c.works[id]; w != nil {
			for _, m := range w.manifests {
				if m.waitsForObject != nil && *m.waitsForObject == key && obs.exists && !obs.deleting {
					m.retryAt = time.Time{}
				}
			}
		}
	}
	if before == nil || ordered || before.uid != o.latest.uid || before.deleting != o.latest.deleting ||
		before.fingerprint != o.latest.fingerprint || !before.reportsSameAs(o.latest) {
		for id := range o.claims {
			c.advanceByID(id)
		}
	}
	for id := range o.waiting {
		c.advanceByID(id)
	}
}

// checkDrift compares the object with the agent's last write and schedules a repair
// when they differ.
func (c *core) checkDrift(o *object) {
	live := o.latest
	if live == nil || live.exists && (live.deleting || o.expected[live.fingerprint] || len(o.expected) == 0) {
		return
	}
	var chosen *manifestState
	var by work.ID
	for id, m := range o.claims {
		w := c.works[id]
		if w == nil || m.inFlight || m.strategy.readOnly() || c.isComplete(w, m) {
			continue
		}
		if _, done := w.applied[o.key]; !done {
			continue
		}
		if !live.exists {
			// Each work that applies the object must own it again.
			delete(w.applied, o.key)
			m.retryAt = c.scheduleRepair(o)
			continue
		}
		if m.strategy.kind == workv1.UpdateStrategyTypeCreateOnly {
			continue
		}
		if chosen == nil || id < by {
			chosen, by = m, id
		}
	}
	if chosen != nil && !chosen.needsRepair {
		chosen.needsRepair = true
		chosen.retryAt = c.scheduleRepair(o)
	}
}

// nextRepair counts a repair and returns when it may be made.
func (o *object) nextRepair(now time.Time) time.Time {
	if now.Sub(o.lastRepair) > repairQuiet {
		o.repairs = 0
	}
	var wait time.Duration
	if o.repairs > 0 {
		wait = min(repairFirst<<min(o.repairs, 10), repairMax)
	}
	if o.lastRepair.After(now) { // a repair is scheduled already
		return o.lastRepair
	}
	o.repairs++
	o.lastRepair = now.Add(wait)
	return o.lastRepair
}
