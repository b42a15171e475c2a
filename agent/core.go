package agent

import (
	"container/heap"
	"time"

	"atoll.dev/api/work"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// core decides what the agent does. It is a state machine: step takes an event
// and the time and returns effects. It does no I/O, reads no clock and belongs
// to one goroutine.
//
// The process may lose an effect, execute it twice, or fail to execute it. The core
// then orders the effect again: from every such state it reaches the state that the
// server ordered.
//
// AMW stands for AppliedManifestWork, the object in which an agent records what
// it applied for one work.
//
//	spec event -> persist -> (durable) -> ack, and: create AMW -> apply manifests -> send status
//	           -> remove objects that the work no longer has -> record appliedResources in the AMW
//	deletion   -> persist -> (durable) -> ack, and: delete AMW and objects -> (all gone) -> finalize AMW -> send Deleted
type core struct {
	cfg coreConfig

	works       map[work.ID]*workState
	amws        map[amwName]*amwState
	nameHolders map[amwName]work.ID          // the work that uses the name for its AMW
	amwsByWork  map[work.ID]map[amwName]bool // the AMWs whose annotation names the work
	objects     map[objectKey]*object
	mappings    map[schema.GroupVersionKind]*mapping
	watches     map[schema.GroupVersionResource]*watchState
	rules       *rulesets
	seq         sequence
	out         outbox
	deleted     deletedWorks
	resync      resync
	timers      timerHeap

	repairsOrdered int                     // since the start
	contestedUntil map[objectKey]time.Time // objects with the condition Contested, and when it ends

	pruneNotBefore time.Time // see lateCallWindow
	amwsSynced     bool      // the first listing of AMWs is complete
	apiDown        bool      // the API server does not answer; the core orders no calls
	probeInFlight  bool

	now            time.Time
	steps          int
	pendingEffects []effect
}

type coreConfig struct {
	consumer     work.Consumer
	hubHash      string
	agentID      string
	fieldManager string
	maxRaw       int
	sendWindow   int // statuses in flight
	resync       resync
	wallTime     func(time.Time) time.Time // default: as it is
}

// wallTime returns the time of day, which may step. Timers use c.now, which does
// not.
func (c *core) wallTime() time.Time {
	if c.cfg.wallTime == nil {
		return c.now
	}
	return c.cfg.wallTime(c.now)
}

func newCore(cfg coreConfig) *core {
	return &core{
		cfg: cfg, works: map[work.ID]*workState{}, amws: map[amwName]*amwState{},
		nameHolders: map[amwName]work.ID{}, amwsByWork: map[work.ID]map[amwName]bool{}, objects: map[objectKey]*object{},
		mappings: map[schema.GroupVersionKind]*mapping{}, watches: map[schema.GroupVersionResource]*watchState{},
		contestedUntil: map[objectKey]time.Time{}, rules: newRulesets(cfg.maxRaw), out: newOutbox(cfg.sendWindow),
		deleted: newDeletedWorks(), resync: cfg.resync.withDefaults(),
	}
}

type watchState struct {
	scope     watchScope
	sinceStep int // the step that started the watch
}

// step handles one event and all timers that are due, and returns the effects
// to carry out, in order.
func (c *core) step(ev event, now time.Time) []effect {
	c.now, c.pendingEffects = now, nil
	c.steps++
	switch ev := ev.(type) {
	case evSpec:
		c.receiveSpec(ev)
	case evDurable:
		if w := c.works[ev.id]; w != nil && w.nextSpec == ev.spec {
			w.nextDurable = true
			c.advance(w)
		}
	case evPossibleDurable:
		if w := c.works[ev.id]; w != nil {
			w.recordingPossible = false
			for _, id := range ev.objects {
				w.durablePossible[id] = true
			}
			c.advance(w)
		}
	case evCeilingDurable:
		c.seq.reserved(ev.ceiling)
	case evMapped:
		c.handleMapped(ev)
	case evKindsChanged:
		c.rediscover()
	case evAMW:
		c.observeAMW(ev.amw)
	case evAMWDeleted:
		if a := c.amws[ev.name]; a != nil && a.uid == ev.uid {
			w := c.workOf(a)
			c.dropAMW(ev.name)
			if w != nil {
				c.advance(w)
			}
		}
	case evAMWsSynced:
		if !c.amwsSynced {
			c.amwsSynced = true
			c.advanceAll()
		}
	case evAMWDone:
		c.handleAMWDone(ev)
	case evObject:
		c.handleObservation(ev.key, ev.obs)
	case evApplied:
		c.handleApplied(ev)
	case evRemoved:
		c.handleRemoved(ev)
	case evProbed:
		c.handleProbed(ev)
	case evConnected:
		c.handleConnected()
	case evDisconnected:
		c.out.markOffline()
		c.resync.stop()
	case evDigest:
		c.resync.handleAnswer(c, ev.answer)
	case evSpecsRequested:
		c.sendHeldWorks(ev.ids)
	case evStatusResync:
		c.seq.raiseAbove(ev.latestSequence)
		c.answerStatusResync(ev.hashes)
	case evSent:
		c.handleSent(ev)
	case evTick:
	}
	c.runDueTimers()
	c.sendQueued()
	return c.pendingEffects
}

// runDueTimers handles the timers that are due, in the order of their times.
func (c *core) runDueTimers() {
	for len(c.timers) > 0 && !c.timers[0].at.After(c.now) {
		t := heap.Pop(&c.timers).(timer)
		switch t.id {
		case retryTimer:
			c.out.enqueueAll()
		case contestTimer:
			c.expireContests()
		case resyncTimer:
			c.resync.runDue(c)
		default:
			c.advanceByID(t.id)
		}
	}
}

// nextWake returns the time by which step must be called again; zero: no timer
// runs.
func (c *core) nextWake() time.Time {
	if len(c.timers) == 0 {
		return time.Time{}
	}
	return c.timers[0].at
}

func (c *core) emit(e effect) { c.pendingEffects = append(c.pendingEffects, e) }

func (c *core) advanceByID(id work.ID) {
	if w := c.works[id]; w != nil {
		c.advance(w)
	}
}

func (c *core) advanceAll() {
	for _, w := range c.works {
		c.advance(w)
	}
}

// load restores the state from the store. It must be called before any step.
func (c *core) load(works map[work.ID]savedWork, ceiling int64, now time.Time) []effect {
	c.now, c.pendingEffects = now, nil
	c.pruneNotBefore = now.Add(lateCallWindow)
	c.seq.resume(ceiling)
	c.reserveSequence()
	for id, s := range works {
		w := c.addWork(id)
		w.nextSpec, w.nextDurable = s.Spec, true
		w.acked = s.Acked
		if s.Progress != nil {
			for _, a := range s.Progress.Objects {
				key := keyOf(a.Ref)
				w.applied[key] = a
				w.unclaimedLoaded = append(w.unclaimedLoaded, key)
				c.waitForObject(key, id)
				if a.Manager != "" {
					c.addManager(c.objects[key], a.Manager)
				}
			}
			for _, r := range s.Progress.Possible {
				w.possible[keyOf(r).identity()] = r
				w.durablePossible[keyOf(r).identity()] = true
			}
			if s.Progress.Generation == s.Spec.Generation {
				w.appliedAt = s.Progress.AppliedAt
			}
		}
		if s.Status != nil && !s.Spec.Deleting {
			w.status = s.Status
			if s.Status.Hash != s.Acked {
				c.out.put(id, outgoing{})
			}
		}
	}
	return c.pendingEffects
}

// observeAMW keeps the state of an AMW from a watch or an answer, unless a newer
// state is known.
func (c *core) observeAMW(a *amwState) {
	known := c.amws[a.name]
	if known != nil && known.uid == a.uid && known.rv > a.rv {
		if w := c.workOf(known); w != nil {
			c.advance(w)
		}
		return
	}
	c.setAMW(a)
	w := c.workOf(a)
	if w != nil && a.deleting && known != nil && !known.deleting {
		w.amwDue = time.Time{} // the deletion was observed: continue at once
	}
	if w == nil && a.deleting {
		// The agent does not know the work, but its removal has begun: finish
		// it. Without a deletion the AMW of an unknown work stays.
		w = c.addWork(a.creator())
		w.unknownToServer = true
		w.spec = &spec{ID: w.id, Deleting: true}
		c.claimName(w, a.name)
	}
	if w != nil {
		c.advance(w)
	}
}

// handleProbed handles the answer of a probe. While the API server does not answer, it orders the next probe. When
// the API server answers again, all works are advanced without their back-off.
func (c *core) handleProbed(ev evProbed) {
	c.probeInFlight = false
	was := c.apiDown
	c.apiDown = !ev.up
	if !ev.up {
		c.probeInFlight = true
		c.emit(effProbe{})
		return
	}
	if !was {
		return
	}
	for _, w := range c.works {
		w.clearBackoffs()
		c.advance(w)
	}
}

// startProbe begins to check whether the API server answers, after a call that
// got no answer.
func (c *core) startProbe() {
	if !c.probeInFlight {
		c.probeInFlight = true
		c.emit(effProbe{})
	}
}
