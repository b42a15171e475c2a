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
	fingerprint string
	owners      []types.UID         // AppliedManifestWorks that own it
	carries     bool                // labels, annotations or finalizers of ours, which stay when a manifest loses them
	feedback    map[string]feedback // by ruleset
}

// object is one object that works want, wait for or remove.
type object struct {
	key    objectKey
	claims map[workID]*manifestState // wanted by
	// waiting works are advanced whenever it changes.
	waiting map[workID]bool
	live    *observed
	since   int // the step from which on watches report it

	// told is the observation that statuses are made of: live, or one a little
	// older while changes come too fast.
	told   *observed
	pace   bucket
	tellAt time.Time // works are called then to tell what is held back

	// managers are the field managers that works name for it.
	managers []string

	// expected are the fingerprints that it may have after our own writes.
	expected map[string]bool
	writing  int // applies under way

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

func (c *core) object(key objectKey) *object {
	o := c.objects[key]
	if o == nil {
		o = &object{key: key, claims: map[workID]*manifestState{}, waiting: map[workID]bool{},
			expected: map[string]bool{}, since: c.steps}
		c.objects[key] = o
		c.do(effWant{key: key})
	}
	return o
}

func (o *object) expect(fingerprint string) { o.expected[fingerprint] = true }

// claim notes that a manifest wants its object.
func (c *core) claim(w *workState, m *manifestState) {
	o := c.object(m.key)
	o.claims[w.id] = m
	m.since = c.steps
	if manager := m.strategy.namedManager(); manager != "" {
		c.addManager(o, manager)
	}
	c.do(effWant{m.key, o.rulesets(), o.managers})
}

// addManager makes the object's fingerprint count the fields of a manager. It
// counts until nobody wants the object any more.
func (c *core) addManager(o *object, manager string) {
	if slices.Contains(o.managers, manager) {
		return
	}
	o.managers = append(slices.Clone(o.managers), manager) // an effect holds the old list
	c.do(effWant{o.key, o.rulesets(), o.managers})
}

func (c *core) unclaim(w *workState, m *manifestState) {
	if m.waitsFor != nil {
		c.unwait(*m.waitsFor, w.id)
		m.waitsFor = nil
	}
	o := c.objects[m.key]
	if o == nil {
		return
	}
	if now := o.claims[w.id]; now != m {
		if now != nil && m.strategy.writes() && !now.strategy.writes() {
			c.handOver(o)
		}
		return
	}
	delete(o.claims, w.id)
	c.handOver(o)
	c.release(o)
}

// handOver is called when a work stops writing an object: if the last word was
// its, another has it now.
func (c *core) handOver(o *object) {
	if len(o.claims) == 0 || o.writing > 0 {
		return
	}
	clear(o.expected)
	for id, m := range o.claims {
		if a, ok := c.works[id].done[o.key]; ok && m.strategy.writes() {
			o.expect(a.Fingerprint)
		}
	}
	c.checkDrift(o)
	for id := range o.claims {
		c.at(c.now.Add(1), id)
	}
}

// await makes changes of an object advance the work.
func (c *core) await(key objectKey, id workID) { c.object(key).waiting[id] = true }

func (c *core) unwait(key objectKey, id workID) {
	if o := c.objects[key]; o != nil {
		delete(o.waiting, id)
		c.release(o)
	}
}

func (c *core) release(o *object) {
	if len(o.claims) == 0 && len(o.waiting) == 0 {
		delete(c.objects, o.key)
		c.do(effUnwant{o.key})
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
func (c *core) watch(gvr schema.GroupVersionResource, full bool) {
	ws := c.watches[gvr]
	if ws != nil && (ws.full || !full) {
		return
	}
	c.watches[gvr] = &watchState{full: full, since: c.steps}
	c.do(effWatch{gvr, full})
}

// unknown says whether what is to be told about the manifest's object has not
// been seen yet.
func (c *core) unknown(m *manifestState) bool {
	live := c.objects[m.key].live
	if live == nil || !live.exists || m.rules == nil {
		return live == nil
	}
	_, read := live.feedback[m.rules.key]
	return !read
}

// unseen says whether it is unknown and no watch will tell: the kind's watch
// had begun when the object, or its rules, became of interest.
func (c *core) unseen(m *manifestState) bool {
	if !c.unknown(m) {
		return false
	}
	o := c.objects[m.key]
	since := o.since
	if o.live != nil {
		since = m.since
	}
	ws := c.watches[m.key.GroupVersionResource]
	return ws != nil && ws.since < since
}

// see keeps an observation if it is newer than what is known.
func (o *object) see(obs *observed) bool {
	if o.live != nil && obs.rv < o.live.rv {
		return false
	}
	if o.live != nil && obs.rv == o.live.rv && obs.exists == o.live.exists {
		// The same version again: it may carry rules' values that the other
		// reading had not.
		merged := *obs
		for k, v := range o.live.feedback {
			if _, ok := merged.feedback[k]; !ok {
				if merged.feedback == nil {
					merged.feedback = map[string]feedback{}
				}
				merged.feedback[k] = v
			}
		}
		o.live = &merged
		return true
	}
	o.live = obs
	return true
}

// observe takes what a watch shows of an object.
func (c *core) observe(key objectKey, obs *observed) {
	o := c.objects[key]
	if o == nil {
		return
	}
	before, repairs := o.live, c.repairs
	if !o.see(obs) {
		return
	}
	if o.writing == 0 {
		c.checkDrift(o)
	}
	ordered := c.repairs != repairs
	for id := range o.waiting {
		if w := c.works[id]; w != nil {
			for _, m := range w.manifests {
				if m.waitsFor != nil && *m.waitsFor == key && obs.exists && !obs.deleting {
					m.due = time.Time{}
				}
			}
		}
	}
	if before == nil || ordered || before.uid != o.live.uid || before.deleting != o.live.deleting ||
		before.fingerprint != o.live.fingerprint || !before.tells(o.live) {
		for id := range o.claims {
			c.advanceID(id)
		}
	}
	for id := range o.waiting {
		c.advanceID(id)
	}
}

// checkDrift compares the object with what we left and orders a repair.
func (c *core) checkDrift(o *object) {
	live := o.live
	if live == nil || live.exists && (live.deleting || o.expected[live.fingerprint] || len(o.expected) == 0) {
		return
	}
	var chosen *manifestState
	var by workID
	for id, m := range o.claims {
		w := c.works[id]
		if w == nil || m.busy || m.strategy.readOnly() || c.complete(w, m) {
			continue
		}
		if _, done := w.done[o.key]; !done {
			continue
		}
		if !live.exists {
			// Everybody who wants it must own it again.
			delete(w.done, o.key)
			m.due = c.orderRepair(o)
			continue
		}
		if m.strategy.kind == workv1.UpdateStrategyTypeCreateOnly {
			continue
		}
		if chosen == nil || id < by {
			chosen, by = m, id
		}
	}
	if chosen != nil && !chosen.repair {
		chosen.repair = true
		chosen.due = c.orderRepair(o)
	}
}

// repairAt is when the object may be repaired next, and counts the repair.
func (o *object) repairAt(now time.Time) time.Time {
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
