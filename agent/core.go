package agent

import (
	"container/heap"
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
)

// core decides what the agent does. It is a state machine: step takes an
// event and the time and returns effects; it does no I/O, has no clock and
// belongs to one goroutine. Every effect may fail, be lost with the process,
// or come twice; whatever happens, the same events again lead on.
//
//	spec event -> persist -> (durable) -> ack, and: create AMW -> apply manifests -> send status
//	           -> prune what is no longer wanted -> record appliedResources in the AMW
//	deletion   -> persist -> (durable) -> ack, and: delete AMW and objects -> (all gone) -> finalize AMW -> send Deleted
type core struct {
	cfg coreConfig

	works       map[workID]*workState
	amws        map[amwName]*amwState
	nameHolders map[amwName]workID          // which work has the name
	amwsByWork  map[workID]map[amwName]bool // AMWs that say which work made them
	objects     map[objectKey]*object
	mappings    map[schema.GroupVersionKind]*mapping
	watches     map[schema.GroupVersionResource]*watchState
	rules       *rulesets
	seq         sequence
	out         outbox
	deleted     deletedWorks
	resync      resync
	timers      timerHeap

	repairsOrdered int                     // ordered so far
	contestedUntil map[objectKey]time.Time // objects that others keep changing back, until when that is told

	pruneNotBefore time.Time // nothing is pruned before
	amwsSynced     bool      // the AppliedManifestWorks in the cluster are known
	apiDown        bool      // the API server does not answer; nothing is asked of it
	probeInFlight  bool

	now            time.Time
	steps          int
	pendingEffects []effect
}

type coreConfig struct {
	consumer     string
	hubHash      string
	agentID      string
	fieldManager string
	maxRaw       int
	sendWindow   int // statuses in flight
	resync       resync
	wallTime     func(time.Time) time.Time // default: as it is
}

// wall is the time as the clock on the wall says it. It may step; what waits
// goes by now, which does not.
func (c *core) wallTime() time.Time {
	if c.cfg.wallTime == nil {
		return c.now
	}
	return c.cfg.wallTime(c.now)
}

func newCore(cfg coreConfig) *core {
	return &core{
		cfg: cfg, works: map[workID]*workState{}, amws: map[amwName]*amwState{},
		nameHolders: map[amwName]workID{}, amwsByWork: map[workID]map[amwName]bool{}, objects: map[objectKey]*object{},
		mappings: map[schema.GroupVersionKind]*mapping{}, watches: map[schema.GroupVersionResource]*watchState{},
		contestedUntil: map[objectKey]time.Time{}, rules: newRulesets(cfg.maxRaw), out: newOutbox(cfg.sendWindow),
		deleted: newDeletedWorks(), resync: cfg.resync.withDefaults(),
	}
}

// Events.
type (
	event interface{}

	// evSpec is a spec event that arrived; ack acknowledges its message.
	evSpec struct {
		spec *spec
		ack  func()
	}
	// evDurable says that the spec is on disk.
	evDurable struct {
		id   workID
		spec *spec
	}
	// evNoted says that it is on disk that these objects may exist.
	evPossibleDurable struct {
		id      workID
		objects []identity
	}
	// evReserved says that a ceiling of sequence ids is on disk.
	evCeilingDurable struct{ ceiling int64 }
	// evMapped answers a discover effect.
	evMapped struct {
		gvk        schema.GroupVersionKind
		gvr        schema.GroupVersionResource
		namespaced bool
		err        *opError
	}
	// evKindsChanged says that a CustomResourceDefinition changed.
	evKindsChanged struct{}
	// evAMW is an AppliedManifestWork as the watch shows it.
	evAMW struct{ amw *amwState }
	// evAMWGone says that one is gone.
	evAMWDeleted struct {
		name amwName
		uid  types.UID
	}
	// evAMWsSynced says that all that exist have been shown.
	evAMWsSynced struct{}
	// evAMWDone answers createAMW, takeOverAMW, deleteAMW, finalizeAMW and
	// recordAMW.
	evAMWDone struct {
		id                workID
		name              amwName
		op                amwOp
		formerDeleted     amwName   // the former AMW that is taken over and gone
		amw               *amwState // as it is now; nil: gone
		deletionRequested bool      // its deletion is asked for, and a watch shows the rest
		err               *opError
	}
	// evObject is an object as a watch shows it.
	evObject struct {
		key objectKey
		obs *observed
	}
	// evApplied answers apply.
	evApplied struct {
		onlyRead bool // nothing was written
		id       workID
		ordinal  int
		key      objectKey
		hash     string
		obs      *observed // as it is now; nil when unknown
		err      *opError
		readErr  string // why obs is unknown although it was asked for
	}
	// evRemoved answers remove.
	evRemoved struct {
		id  workID
		key objectKey
		was removalOutcome
		err *opError
	}
	// evProbed answers probe: the API server answers again, or not.
	evProbed struct{ up bool }
	// evConnected says that the bus is connected and subscribed.
	evConnected struct{}
	// evDisconnected says that it is not.
	evDisconnected struct{}
	// evStatusResync is the server asking for statuses.
	evStatusResync struct{ hashes []work.StatusHash }
	// evDigest is what the server says to a digest.
	evDigest struct{ answer work.DigestAnswer }
	// evSpecsWanted is the server asking for works that it does not know.
	evSpecsRequested struct{ ids []string }
	// evSent answers send.
	evSent struct {
		id       workID
		seq      int64
		hash     string
		accepted bool
	}
	// evTick only passes the time.
	evTick struct{}
)

// Effects.
type (
	effect interface{}

	// effPersist appends to the store. When it is on disk, ack is called and
	// then comes back, where they are set.
	effPersist struct {
		rec  record
		ack  func()
		then event
	}
	effDiscover struct{ gvk schema.GroupVersionKind }
	// effCreateAMW makes an AMW, or makes it ours again.
	effCreateAMW struct {
		id     workID
		name   amwName
		labels map[string]string
	}
	// effTakeOverAMW makes the work's AMW the owner of what a former AMW of the
	// work owns, writes its list down, and ends the former one.
	effTakeOverAMW struct {
		id         workID
		name       amwName
		uid        types.UID
		former     amwName
		formerUID  types.UID
		finalizers []string          // of the former one, those that are not the agent's
		objects    []resourceRef     // what the former one may own
		orphaned   map[identity]bool // those that the work does not own any more
		applied    []resourceRef     // the list of both
	}
	effDeleteAMW struct {
		id   workID
		name amwName
		uid  types.UID
	}
	effFinalizeAMW struct {
		id         workID
		name       amwName
		uid        types.UID
		finalizers []string // those that stay
	}
	effRecordAMW struct {
		id      workID
		name    amwName
		uid     types.UID
		applied []resourceRef
		keep    bool // ends another agent's eviction
	}
	// effApply writes a manifest. read only looks at its object, ask not even
	// that: it asks whether the executor may.
	effApply struct {
		onlyRead      bool
		onlyAuthorize bool
		id            workID
		ordinal       int
		key           objectKey
		gvk           schema.GroupVersionKind
		manifest      json.RawMessage
		owners        []metav1.OwnerReference
		owner         types.UID // of the work's AMW
		owned         bool      // by it; else its reference is taken away
		readFirst     bool      // what is there has to be seen before it is written
		hash          string
		strategy      strategy
		executor      *workv1.ManifestWorkExecutor // in whose name; nil: the agent's own
	}
	// effRemove deletes an object, or takes away our ownership only.
	effRemove struct {
		id      workID
		key     objectKey
		uid     types.UID // of the instance that is ours; "" when not known
		owner   types.UID // of our AMW; "" when it is gone
		amw     amwName   // its name
		release bool      // leave the object
		obs     *observed // as last seen, nil when unknown
	}
	// effWant makes watches report an object, with what the rules find in it and
	// a fingerprint that counts the fields of these managers beside the agent's.
	effObserve struct {
		key      objectKey
		rules    []*ruleset
		managers []string
	}
	effUnobserve struct{ key objectKey }
	// effWatch starts watching a kind, with whole objects or metadata only.
	effWatch struct {
		gvr  schema.GroupVersionResource
		full bool
	}
	// effWatchKinds starts watching for new kinds.
	effWatchKinds struct{}
	effProbe      struct{}
	// effResync asks the server for what differs.
	effResync struct{ versions []work.SpecVersion }
	// effSay sends an event of our own: a part of the comparison by digests.
	effPublish struct {
		kind string
		data any
	}
	effSend struct{ event *statusEvent }
)

type amwOp int

const (
	amwCreate amwOp = iota
	amwTakeOver
	amwDelete
	amwFinalize
	amwRecord
)

type removalOutcome int

const (
	removalGone     removalOutcome = iota // it is not there, or it is not ours, or it is ours no more
	removalDeleting                       // asked for; a watch will show the end
)

// opError is why a call to the API server failed.
type opError struct {
	kind    errorKind
	message string
	reason  string // of the manifest's Applied condition; "" for AppliedManifestFailed
	// namespace is the one that is missing, for kind errNamespace.
	namespace string
}

type errorKind int

const (
	errRefused   errorKind = iota // the server's answer
	errTransport                  // no answer
	errNoKind                     // the server does not know the kind
	errNamespace                  // the namespace does not exist
	errConflict                   // it changed meanwhile
	errDenied                     // the executor may not do it
)

func (e *opError) Error() string { return e.message }

// mapping is what discovery knows about a kind.
type mapping struct {
	gvr          schema.GroupVersionResource
	namespaced   bool
	known        bool
	inFlight     bool
	askedAt      time.Time
	err          string
	failures     int // to get an answer
	waitingWorks map[workID]bool
}

// amwState is an AppliedManifestWork.
type amwState struct {
	name       amwName
	work       workID // that made it; "" when it does not say
	uid        types.UID
	rv         uint64
	deleting   bool
	finalizers []string
	applied    []resourceRef
	foreign    bool // its spec is not what this agent writes
	evicting   bool // another agent counts the time until it deletes it
}

type watchState struct {
	full      bool
	sinceStep int // the step that started it
}

// step is the whole of the core's life.
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
		c.handleProbed(ev.up)
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
		c.answerStatusResync(ev.hashes)
	case evSent:
		c.handleSent(ev)
	case evTick:
	}
	for len(c.timers) > 0 && !c.timers[0].at.After(now) {
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
	c.sendQueued()
	return c.pendingEffects
}

// wake is when step wants to be called again at the latest, zero for never.
func (c *core) nextWake() time.Time {
	if len(c.timers) == 0 {
		return time.Time{}
	}
	return c.timers[0].at
}

func (c *core) emit(e effect) { c.pendingEffects = append(c.pendingEffects, e) }

func (c *core) advanceByID(id workID) {
	if w := c.works[id]; w != nil {
		c.advance(w)
	}
}

func (c *core) advanceAll() {
	for _, w := range c.works {
		c.advance(w)
	}
}

// load takes over what the store knew. It must come before any step.
func (c *core) load(works map[workID]savedWork, ceiling int64, now time.Time) []effect {
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

// sawAMW takes an AppliedManifestWork from a watch or an answer, unless a
// newer one is known.
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
		w.amwDue = time.Time{} // what was waited for
	}
	if w == nil && a.deleting {
		// Nobody knows the work, but its removal was asked for and is half
		// done: finish it. One that is not being deleted stays for ever.
		w = c.addWork(a.creator())
		w.unknownToServer = true
		w.spec = &spec{ID: w.id, Deleting: true}
		c.claimName(w, a.name)
	}
	if w != nil {
		c.advance(w)
	}
}

func (c *core) handleProbed(up bool) {
	c.probeInFlight = false
	was := c.apiDown
	c.apiDown = !up
	if !up {
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

// transportFailed notes that a call got no answer.
func (c *core) startProbe() {
	if !c.probeInFlight {
		c.probeInFlight = true
		c.emit(effProbe{})
	}
}
