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

// core decides what the agent does. It is a state machine: step takes an event
// and the time and returns effects. It does no I/O, reads no clock and belongs
// to one goroutine.
//
// Each effect may fail, be lost with the process, or be carried out twice. The
// core then orders it again: from every such state it reaches the state that
// the server ordered.
//
// AMW stands for AppliedManifestWork, the object in which an agent records what
// it applied for one work.
//
//	spec event -> persist -> (durable) -> ack, and: create AMW -> apply manifests -> send status
//	           -> prune what is no longer wanted -> record appliedResources in the AMW
//	deletion   -> persist -> (durable) -> ack, and: delete AMW and objects -> (all gone) -> finalize AMW -> send Deleted
type core struct {
	cfg coreConfig

	works       map[workID]*workState
	amws        map[amwName]*amwState
	nameHolders map[amwName]workID          // the work that uses the name for its AMW
	amwsByWork  map[workID]map[amwName]bool // the AMWs whose annotation names the work
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
	consumer     string
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

	// evSpec brings a spec from the server. ack acknowledges its message.
	evSpec struct {
		spec *spec
		ack  func()
	}
	// evDurable reports that the spec is on disk.
	evDurable struct {
		id   workID
		spec *spec
	}
	// evPossibleDurable reports that these objects are on disk as possible
	// objects of the work.
	evPossibleDurable struct {
		id      workID
		objects []identity
	}
	// evCeilingDurable reports that a ceiling of sequence ids is on disk.
	evCeilingDurable struct{ ceiling int64 }
	// evMapped answers effDiscover.
	evMapped struct {
		gvk        schema.GroupVersionKind
		gvr        schema.GroupVersionResource
		namespaced bool
		err        *opError
	}
	// evKindsChanged reports that a CustomResourceDefinition changed.
	evKindsChanged struct{}
	// evAMW brings the state of an AMW from the watch.
	evAMW struct{ amw *amwState }
	// evAMWDeleted reports that an AMW does not exist any more.
	evAMWDeleted struct {
		name amwName
		uid  types.UID
	}
	// evAMWsSynced ends the first listing of AMWs.
	evAMWsSynced struct{}
	// evAMWDone answers effCreateAMW, effTakeOverAMW, effDeleteAMW,
	// effFinalizeAMW and effRecordAMW.
	evAMWDone struct {
		id                workID
		name              amwName
		op                amwOp
		formerDeleted     amwName   // the former AMW, when the take-over deleted it
		amw               *amwState // its state now; nil: it does not exist
		deletionRequested bool      // the API server accepted the deletion; the watch shows its end
		err               *opError
	}
	// evObject brings the state of an object from a watch.
	evObject struct {
		key objectKey
		obs *observed
	}
	// evApplied answers effApply.
	evApplied struct {
		onlyRead bool // nothing was written
		id       workID
		ordinal  int
		key      objectKey
		hash     string
		obs      *observed // its state now; nil when unknown
		err      *opError
		readErr  string // why the object could not be read
	}
	// evRemoved answers effRemove.
	evRemoved struct {
		id  workID
		key objectKey
		was removalOutcome
		err *opError
	}
	// evProbed answers effProbe: up reports whether the API server answers.
	evProbed struct{ up bool }
	// evConnected reports that the bus is connected and subscribed.
	evConnected struct{}
	// evDisconnected reports that the connection to the bus ended.
	evDisconnected struct{}
	// evStatusResync brings the server's request for statuses.
	evStatusResync struct{ hashes []work.StatusHash }
	// evDigest brings the server's answer to a digest.
	evDigest struct{ answer work.DigestAnswer }
	// evSpecsRequested brings the server's request for works that it lost.
	evSpecsRequested struct{ ids []string }
	// evSent answers effSend.
	evSent struct {
		id       workID
		seq      int64
		hash     string
		accepted bool
	}
	// evTick only advances the time.
	evTick struct{}
)

// Effects.
type (
	effect interface{}

	// effPersist appends rec to the store. Once rec is on disk, the shell calls
	// ack and sends the event then to the core, where these are set.
	effPersist struct {
		rec  record
		ack  func()
		then event
	}
	effDiscover struct{ gvk schema.GroupVersionKind }
	// effCreateAMW creates an AMW, or corrects the spec of an existing one.
	effCreateAMW struct {
		id     workID
		name   amwName
		labels map[string]string
	}
	// effTakeOverAMW makes the work's AMW the owner of all objects of a former
	// AMW of the work, records them in it, and deletes the former AMW.
	effTakeOverAMW struct {
		id         workID
		name       amwName
		uid        types.UID
		former     amwName
		formerUID  types.UID
		finalizers []string          // those of the former AMW that stay
		objects    []resourceRef     // that the former AMW may own
		orphaned   map[identity]bool // objects that the work owns no more
		applied    []resourceRef     // the objects of both AMWs
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
		keep    bool // cancels the eviction that another agent began
	}
	// effApply writes a manifest. With onlyRead it reads the object instead;
	// with onlyAuthorize it only checks the rights of the executor.
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
		owned         bool      // false: the work orphans the object
		readFirst     bool      // the write must keep metadata that only a read shows
		hash          string
		strategy      strategy
		executor      *workv1.ManifestWorkExecutor // nil: the agent's own rights
	}
	// effRemove deletes an object, or only removes the work's owner reference.
	effRemove struct {
		id      workID
		key     objectKey
		uid     types.UID // of the instance that the work applied; "" when unknown
		owner   types.UID // of the work's AMW; "" when that does not exist
		amw     amwName   // its name
		release bool      // the object stays
		obs     *observed // from a watch, maybe out of date; nil when unknown
	}
	// effObserve makes watches report an object, with the values that the rules
	// find in it and with a fingerprint that includes the fields of these
	// managers beside those of the agent.
	effObserve struct {
		key      objectKey
		rules    []*ruleset
		managers []string
	}
	effUnobserve struct{ key objectKey }
	// effWatch starts the watch of a kind: full objects, or metadata only.
	effWatch struct {
		gvr  schema.GroupVersionResource
		full bool
	}
	// effWatchKinds starts the watch of CustomResourceDefinitions.
	effWatchKinds struct{}
	effProbe      struct{}
	// effResync sends the list of works to the server.
	effResync struct{ versions []work.SpecVersion }
	// effPublish sends an event of the comparison by digests.
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
	removalGone     removalOutcome = iota // the object does not exist, or the work does not own it (any more)
	removalDeleting                       // the API server accepted the deletion; a watch shows its end
)

// opError is the error of a call to the API server.
type opError struct {
	kind    errorKind
	message string
	reason  string // of the manifest's Applied condition; "" means AppliedManifestFailed
	// namespace is the missing namespace, for kind errNamespace.
	namespace string
}

type errorKind int

const (
	errRefused   errorKind = iota // the API server refused the call
	errTransport                  // the API server did not answer
	errNoKind                     // the API server does not know the kind
	errNamespace                  // the namespace does not exist
	errConflict                   // the object changed meanwhile
	errDenied                     // the executor lacks a right
)

func (e *opError) Error() string { return e.message }

// mapping is the result of discovery for one kind.
type mapping struct {
	gvr          schema.GroupVersionResource
	namespaced   bool
	known        bool
	inFlight     bool
	askedAt      time.Time
	err          string
	failures     int // discoveries in a row without an answer
	waitingWorks map[workID]bool
}

// amwState is an AppliedManifestWork.
type amwState struct {
	name       amwName
	work       workID // from its annotation; "" without one
	uid        types.UID
	rv         uint64
	deleting   bool
	finalizers []string
	applied    []resourceRef
	foreign    bool // its spec differs from the spec that this agent writes
	evicting   bool // another agent has begun the time limit after which it deletes the AMW
}

type watchState struct {
	full      bool
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

// nextWake returns the time by which step must be called again; zero: no timer
// runs.
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

// load restores the state from the store. It must be called before any step.
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

// startProbe begins to check whether the API server answers, after a call that
// got no answer.
func (c *core) startProbe() {
	if !c.probeInFlight {
		c.probeInFlight = true
		c.emit(effProbe{})
	}
}
