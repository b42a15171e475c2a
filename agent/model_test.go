package agent

import (
	"maps"
	"slices"
	"time"

	"atoll.dev/api/work"

	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"
)

// model is a world for the core alone: a cluster, a disk, a wire and a server,
// each reduced to what the core can notice, each able to fail at every step.
type model struct {
	t *rapid.T // of a random history
	// fatalf ends the test; isInterrupted draws whether a call breaks off.
	fatalf        func(format string, args ...any)
	isInterrupted func() bool
	trace         func(effect) // sees each effect
	core          *core
	now           time.Time

	// The cluster.
	rv      uint64
	objects map[objectKey]*modelObject
	amws    map[amwName]*amwState
	wanted  map[objectKey][]*ruleset
	watched bool // ConfigMaps
	// watchDenied: the agent has lost the right to watch ConfigMaps.
	watchDenied bool
	// kindUnknown: the API server does not serve ConfigMaps.
	kindUnknown bool

	// The disk: durable records, and those appended since.
	disk      map[work.ID]savedWork
	ceiling   int64
	unflushed []effPersist

	calls  []effect // to the API server, under way
	events []event  // on their way to the core, in order
	sends  []*statusEvent

	// The server.
	orders            map[work.ID]*modelOrder
	lastGenerations   map[work.ID]int64 // the last generation of works that are gone
	specsInFlight     []evSpec          // specs on the wire
	online            bool
	apiUp             bool
	denied            bool      // executors may do nothing
	lateCalls         []effect  // calls of an agent that was killed, still under way
	lateUntil         time.Time // when the last of them has happened, or never will
	executingLateCall bool      // such a call is carried out
	value             int
	// sequence is the last id that the agent gave out, in any of its lives.
	sequence int64
	// digests: the server is an Atoll server, and compares digests.
	digests bool
}

type modelObject struct {
	uid         types.UID
	rv          uint64
	value       string
	owners      []types.UID
	fingerprint string
	deleting    bool
	phase       string // its status, which others write
	held        bool   // another controller's finalizer keeps it
	mayStay     bool   // a work orphaned it: it may exist without owners
}

type modelOrder struct {
	generation int64
	objects    map[string]string
	name       string // of the work on its hub
	orphan     bool
	leave      map[string]bool                      // objects that are orphaned
	strategies map[string]workv1.UpdateStrategyType // where it is not Update
	executor   bool
	deleting   bool
	applied    bool // in this generation
	sequence   int64
	phases     map[string]string // of its objects, as last reported
}

var modelNames = []string{"x", "y", "z", "shared"}

// newModel is a model for a random history.
func newModel(t *rapid.T) *model {
	m := emptyModel()
	m.t, m.fatalf = t, t.Fatalf
	m.isInterrupted = func() bool { return rapid.IntRange(0, 2).Draw(t, "interrupted") == 0 }
	m.digests = rapid.Bool().Draw(t, "digests")
	m.restart()
	return m
}

func emptyModel() *model {
	return &model{
		now: noon, objects: map[objectKey]*modelObject{}, amws: map[amwName]*amwState{}, disk: map[work.ID]savedWork{},
		orders: map[work.ID]*modelOrder{}, lastGenerations: map[work.ID]int64{}, apiUp: true, trace: func(effect) {},
		isInterrupted: func() bool { return false },
	}
}

// restart starts a core with the content of the disk. Calls, messages and unflushed
// records of the core before it are lost.
func (m *model) restart() {
	m.core = newCore(coreConfig{consumer: "c", hubHash: "h", agentID: "h", fieldManager: "work-agent", maxRaw: 1000,
		sendWindow: 4})
	m.wanted, m.watched = map[objectKey][]*ruleset{}, false
	m.calls, m.events, m.sends, m.specsInFlight, m.unflushed = nil, nil, nil, nil, nil
	m.online = false
	works := map[work.ID]savedWork{}
	maps.Copy(works, m.disk)
	m.handle(m.core.load(works, m.ceiling, m.now))
	m.listAMWs()
}

func (m *model) listAMWs() {
	for _, name := range slices.Sorted(maps.Keys(m.amws)) {
		a := *m.amws[name]
		m.events = append(m.events, evAMW{&a})
	}
	m.events = append(m.events, evAMWsSynced{})
}

func (m *model) step(ev event) { m.handle(m.core.step(ev, m.now)) }

// handle carries out effects that need no time, and queues the others.
func (m *model) handle(effects []effect) {
	watch := false
	for _, e := range effects {
		m.trace(e)
		switch e := e.(type) {
		case effPersist:
			m.unflushed = append(m.unflushed, e)
		case effObserve:
			m.wanted[e.key] = e.rules
		case effUnobserve:
			delete(m.wanted, e.key)
		case effWatch:
			watch = true
		case effResync:
			m.resync(e.versions)
		case effPublish:
			m.compareDigests(e)
		case effSend:
			if e.event.seq <= m.sequence {
				m.fatalf("sequence id %d after %d: a server would drop the status", e.event.seq, m.sequence)
			}
			m.sequence = e.event.seq
			m.sends = append(m.sends, e.event)
		case effWatchKinds:
		default:
			m.calls = append(m.calls, e)
		}
	}
	if watch {
		m.watched = true
		for _, key := range slices.SortedFunc(maps.Keys(m.wanted), compareKeys) {
			m.events = append(m.events, evObject{key, m.observe(key)})
		}
	}
}

func (m *model) flushDisk(n int) {
	for _, w := range m.unflushed[:n] {
		rec := w.rec
		m.ceiling = max(m.ceiling, rec.Ceiling)
		if rec.ID != "" {
			s := &store{works: m.disk}
			s.merge(rec)
		}
		if w.ack != nil {
			w.ack()
		}
		if w.then != nil {
			m.events = append(m.events, w.then)
		}
	}
	m.unflushed = slices.Clone(m.unflushed[n:])
}

// executeLateCalls takes n calls that a killed agent has sent, and executes those that arrive in time at a running
// API server.
func (m *model) executeLateCalls(n int) {
	m.executingLateCall = true
	defer func() { m.executingLateCall = false }()
	for ; n > 0 && len(m.lateCalls) > 0; n-- {
		e := m.lateCalls[0]
		m.lateCalls = m.lateCalls[1:]
		if m.apiUp && !m.now.After(m.lateUntil) {
			m.execute(e)
		}
	}
}
