package agent

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
)

// observed is what is kept of an object: never the object itself, so that
// memory is bounded by the works and not by what they make.
type observed struct {
	exists   bool
	uid      types.UID
	rv       uint64
	deleting bool
	// fingerprint changes when somebody takes a field from our field manager,
	// changes it or removes it: it is made of the managed fields that the API
	// server keeps for us. So drift is seen without comparing content, and
	// what the server defaults or other managers add is none.
	fingerprint    string
	owners         []types.UID         // AppliedManifestWorks that own it
	hasOwnMetadata bool                // labels, annotations or finalizers of ours, which stay when a manifest loses them
	feedback       map[string]feedback // by ruleset
}

// object is one object that works want, wait for or remove.
type object struct {
	key    objectKey
	claims map[workID]*manifestState // wanted by
	// waiting works are advanced whenever it changes.
	waiting   map[workID]bool
	latest    *observed
	sinceStep int // the step from which on watches report it

	// told is the observation that statuses are made of: live, or one a little
	// older while changes come too fast.
	reported   *observed
	reportPace tokenBucket
	reportAt   time.Time // works are called then to tell what is held back

	// managers are the field managers that works name for it.
	managers []string

	// expected are the fingerprints that it may have after our own writes.
	expected       map[string]bool
	writesInFlight int // applies under way

	repairs    int
	lastRepair time.Time
}

// repairs of one object are spaced out when they come soon after each other:
// two writers that fight may not flood the API server.
const (
	repairQuiet = time.Minute
	repairFirst = 100 * time.Millisecond
	repairMax   = 30 * time.Second
)

func (c *core) ensureObject(key objectKey) *object {
	o := c.objects[key]
	if o == nil {
		o = &object{key: key, claims: map[workID]*manifestState{}, waiting: map[workID]bool{},
			expected: map[string]bool{}, sinceStep: c.steps}
		c.objects[key] = o
		c.emit(effObserve{key: key})
	}
	return o
}

func (o *object) expectFingerprint(fingerprint string) { o.expected[fingerprint] = true }

// claim notes that a manifest wants its object.
func (c *core) claim(w *workState, m *manifestState) {
	o := c.ensureObject(m.key)
	o.claims[w.id] = m
	m.claimStep = c.steps
	if manager := m.strategy.namedManager(); manager != "" {
		c.addManager(o, manager)
	}
	c.emit(effObserve{m.key, o.rulesets(), o.managers})
}

// addManager makes the object's fingerprint count the fields of a manager. It
// counts until nobody wants the object any more.
func (c *core) addManager(o *object, manager string) {
	if slices.Contains(o.managers, manager) {
		return
	}
	o.managers = append(slices.Clone(o.managers), manager) // an effect holds the old list
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

// handOver is called when a work stops writing an object: if the last word was
// its, another has it now.
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

// await makes changes of an object advance the work.
func (c *core) waitForObject(key objectKey, id workID) { c.ensureObject(key).waiting[id] = true }

func (c *core) stopWaitingForObject(key objectKey, id workID) {
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

// watch makes sure that the kind is watched, with whole objects when rules
// must read them.
func (c *core) ensureWatch(gvr schema.GroupVersionResource, full bool) {
	ws := c.watches[gvr]
	if ws != nil && (ws.full || !full) {
		return
	}
	c.watches[gvr] = &watchState{full: full, sinceStep: c.steps}
	c.emit(effWatch{gvr, full})
}

// unknown says whether what is to be told about the manifest's object has not
// been seen yet.
func (c *core) stateUnknown(m *manifestState) bool {
	live := c.objects[m.key].latest
	if live == nil || !live.exists || m.rules == nil {
		return live == nil
	}
	_, read := live.feedback[m.rules.key]
	return !read
}

// unseen says whether it is unknown and no watch will tell: the kind's watch
// had begun when the object, or its rules, became of interest.
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

// see keeps an observation if it is newer than what is known.
func (o *object) keepIfNewer(obs *observed) bool {
	if o.latest != nil && obs.rv < o.latest.rv {
		return false
	}
	if o.latest != nil && obs.rv == o.latest.rv && obs.exists == o.latest.exists {
		// The same version again: it may carry rules' values that the other
		// reading had not.
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

// observe takes what a watch shows of an object.
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

// checkDrift compares the object with what we left and orders a repair.
func (c *core) checkDrift(o *object) {
	live := o.latest
	if live == nil || live.exists && (live.deleting || o.expected[live.fingerprint] || len(o.expected) == 0) {
		return
	}
	var chosen *manifestState
	var by workID
	for id, m := range o.claims {
		w := c.works[id]
		if w == nil || m.inFlight || m.strategy.readOnly() || c.isComplete(w, m) {
			continue
		}
		if _, done := w.applied[o.key]; !done {
			continue
		}
		if !live.exists {
			// Everybody who wants it must own it again.
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

// repairAt is when the object may be repaired next, and counts the repair.
func (o *object) nextRepair(now time.Time) time.Time {
	if now.Sub(o.lastRepair) > repairQuiet {
		o.repairs = 0
	}
	var wait time.Duration
	if o.repairs > 0 {
		wait = min(repairFirst<<min(o.repairs, 10), repairMax)
	}
	if o.lastRepair.After(now) { // one is due already
		return o.lastRepair
	}
	o.repairs++
	o.lastRepair = now.Add(wait)
	return o.lastRepair
}
