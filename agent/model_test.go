package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"

	"atoll.dev/api/work"
	"atoll.dev/internal/digest"
)

// model is a world for the core alone: a cluster, a disk, a wire and a server,
// each reduced to what the core can notice, each able to fail at every step.
type model struct {
	t    *rapid.T
	core *core
	now  time.Time

	// The cluster.
	rv      uint64
	objects map[objectKey]*modelObject
	amws    map[amwName]*amwState
	wanted  map[objectKey][]*ruleset
	watched bool // ConfigMaps

	// The disk: what is durable, and what was appended since.
	disk      map[workID]savedWork
	ceiling   int64
	unflushed []effPersist

	calls  []effect // to the API server, under way
	events []event  // on their way to the core, in order
	sends  []*statusEvent

	// The server.
	orders            map[workID]*modelOrder
	lastGenerations   map[workID]int64 // the last generation of works that are gone
	specsInFlight     []evSpec         // specs on the wire
	online            bool
	apiUp             bool
	denied            bool      // executors may do nothing
	lateCalls         []effect  // calls of an agent that was killed, still under way
	lateUntil         time.Time // when the last of them has happened, or never will
	executingLateCall bool      // such a call is carried out
	value             int
	// sequence is the last id that the agent gave out, in any of its lives.
	sequence int64
	// digests says that the server is one of ours, and compares digests.
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
	phases     map[string]string // of its objects, as last told
}

var modelNames = []string{"x", "y", "z", "shared"}

func newModel(t *rapid.T) *model {
	m := &model{
		t: t, now: noon, objects: map[objectKey]*modelObject{}, amws: map[amwName]*amwState{}, disk: map[workID]savedWork{},
		orders: map[workID]*modelOrder{}, lastGenerations: map[workID]int64{}, apiUp: true,
		digests: rapid.Bool().Draw(t, "digests"),
	}
	m.restart()
	return m
}

// boot starts a core on what the disk holds.
func (m *model) restart() {
	m.core = newCore(coreConfig{consumer: "c", hubHash: "h", agentID: "h", fieldManager: "work-agent", maxRaw: 1000,
		sendWindow: 4})
	m.wanted, m.watched = map[objectKey][]*ruleset{}, false
	m.calls, m.events, m.sends, m.specsInFlight, m.unflushed = nil, nil, nil, nil, nil
	m.online = false
	works := map[workID]savedWork{}
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

// take does what needs no time, and queues what does.
func (m *model) handle(effects []effect) {
	watch := false
	for _, e := range effects {
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
				m.t.Fatalf("sequence id %d after %d: a server would drop the status", e.event.seq, m.sequence)
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

func compareKeys(a, b objectKey) int { return strings.Compare(a.String(), b.String()) }

func (m *model) observe(key objectKey) *observed {
	o := m.objects[key]
	if o == nil {
		return &observed{rv: m.rv}
	}
	obs := &observed{exists: true, uid: o.uid, rv: o.rv, deleting: o.deleting, fingerprint: o.fingerprint,
		owners: slices.Clone(o.owners)}
	for _, rs := range m.wanted[key] {
		if obs.feedback == nil {
			obs.feedback = map[string]feedback{}
		}
		obs.feedback[rs.key] = rs.read(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
			map[string]any{"status": map[string]any{"phase": o.phase}})
	}
	return obs
}

// touched notes a change of an object and shows it to the watch.
func (m *model) showChange(key objectKey) {
	m.rv++
	if o := m.objects[key]; o != nil {
		o.rv = m.rv
	}
	if _, wanted := m.wanted[key]; wanted && m.watched {
		m.events = append(m.events, evObject{key, m.observe(key)})
	}
}

func (m *model) showAMWChange(name amwName, was *amwState) {
	m.rv++
	if a := m.amws[name]; a != nil {
		a.rv = m.rv
		shown := *a
		m.events = append(m.events, evAMW{&shown})
		return
	}
	m.events = append(m.events, evAMWDeleted{name, was.uid})
}

// amwsOf are the AMWs of a work, under whatever name.
func (m *model) amwsOf(id workID) []*amwState {
	var all []*amwState
	for _, name := range slices.Sorted(maps.Keys(m.amws)) {
		a, w := m.amws[name], m.core.works[id]
		if a.work == id || a.work == "" && (w != nil && w.amw == name || workID(name) == id &&
			m.core.nameHolders[name] == "") {
			all = append(all, a)
		}
	}
	return all
}

func (m *model) newUID() types.UID {
	m.rv++
	return types.UID(fmt.Sprint("u", m.rv))
}

// call carries a call out on the cluster and returns the answer.
func (m *model) execute(e effect) event {
	switch e := e.(type) {
	case effDiscover:
		return evMapped{gvk: e.gvk, gvr: configMaps, namespaced: true}
	case effProbe:
		return evProbed{up: true}
	case effCreateAMW:
		a := m.amws[e.name]
		if a == nil {
			a = &amwState{name: e.name, uid: m.newUID(), finalizers: []string{amwFinalizer}, foreign: true}
			m.amws[e.name] = a
		}
		if a.foreign || !a.belongsTo(e.id) {
			a.foreign = false
			if workID(e.name) != e.id {
				a.work = e.id
			}
			m.showAMWChange(e.name, nil)
		}
		shown := *a
		return evAMWDone{id: e.id, name: e.name, op: amwCreate, amw: &shown}
	case effTakeOverAMW:
		return m.takeOver(e)
	case effDeleteAMW:
		a := m.amws[e.name]
		if a == nil || a.uid != e.uid {
			return evAMWDone{id: e.id, name: e.name, op: amwDelete, err: conflictWhen(a != nil)}
		}
		a.deleting = true
		m.showAMWChange(e.name, a)
		return evAMWDone{id: e.id, name: e.name, op: amwDelete, deletionRequested: true}
	case effFinalizeAMW:
		a := m.amws[e.name]
		if a == nil {
			return evAMWDone{id: e.id, name: e.name, op: amwFinalize}
		}
		if a.uid != e.uid {
			return evAMWDone{id: e.id, name: e.name, op: amwFinalize, err: conflictWhen(true)}
		}
		if !a.deleting {
			m.t.Fatalf("the finalizer of %s is taken away although nobody deleted it", e.id)
		}
		delete(m.amws, e.name)
		m.showAMWChange(e.name, a)
		return evAMWDone{id: e.id, name: e.name, op: amwFinalize}
	case effRecordAMW:
		a := m.amws[e.name]
		if a == nil || a.uid != e.uid {
			return evAMWDone{id: e.id, name: e.name, op: amwRecord, err: conflictWhen(a != nil)}
		}
		a.applied = e.applied
		a.evicting = a.evicting && !e.keep
		m.showAMWChange(e.name, a)
		shown := *a
		return evAMWDone{id: e.id, name: e.name, op: amwRecord, amw: &shown}
	case effApply:
		return m.apply(e)
	case effRemove:
		return m.remove(e)
	}
	panic(fmt.Sprintf("no model of %T", e))
}

// takeOver may be interrupted after the objects have changed hands.
func (m *model) takeOver(e effTakeOverAMW) event {
	done := evAMWDone{id: e.id, name: e.name, op: amwTakeOver}
	a, former := m.amws[e.name], m.amws[e.former]
	if a == nil || a.uid != e.uid {
		done.err = conflictWhen(a != nil)
		return done
	}
	for _, ref := range e.objects {
		o := m.objects[keyOf(ref)]
		if o == nil || !slices.Contains(o.owners, e.formerUID) {
			continue
		}
		o.owners = slices.DeleteFunc(o.owners, func(u types.UID) bool { return u == e.formerUID || u == e.uid })
		if e.orphaned[keyOf(ref).identity()] {
			o.mayStay = true
		} else {
			o.owners = append(o.owners, e.uid)
		}
		o.fingerprint += "t"
		m.showChange(keyOf(ref))
	}
	if rapid.IntRange(0, 2).Draw(m.t, "interrupted") == 0 {
		done.err = &opError{kind: errTransport, message: "no answer"}
		return done
	}
	a.applied = e.applied
	m.showAMWChange(e.name, a)
	if former != nil && former.uid == e.formerUID {
		delete(m.amws, e.former)
		m.showAMWChange(e.former, former)
	}
	shown := *a
	done.amw, done.formerDeleted = &shown, e.former
	return done
}

func conflictWhen(b bool) *opError {
	if b {
		return &opError{kind: errConflict, message: "conflict"}
	}
	return nil
}

func (m *model) apply(e effApply) event {
	done := evApplied{id: e.id, ordinal: e.ordinal, key: e.key, hash: e.hash, onlyRead: e.onlyRead}
	if e.executor != nil && m.denied {
		done.err, done.obs = &opError{kind: errDenied, message: "denied"}, m.observe(e.key)
		return done
	}
	if e.onlyAuthorize {
		return done
	}
	if !e.onlyRead {
		if e.strategy.readOnly() {
			m.t.Fatalf("%s is only to be read for %s", e.key, e.id)
		}
		if !m.executingLateCall && !m.isRecorded(e) {
			m.t.Fatalf("%s is applied for %s before that is on disk (I12)", e.key, e.id)
		}
		o := m.objects[e.key]
		if o == nil {
			o = &modelObject{uid: m.newUID()}
			m.objects[e.key] = o
		}
		var cm struct{ Data map[string]string }
		if err := json.Unmarshal(e.manifest, &cm); err != nil {
			m.t.Fatal(err)
		}
		owners := []types.UID{}
		for _, r := range e.owners {
			owners = append(owners, r.UID)
		}
		if e.strategy.kind == workv1.UpdateStrategyTypeCreateOnly && o.fingerprint != "" {
			for _, u := range o.owners { // only owned
				if !slices.Contains(owners, u) && (e.owned || u != e.owner) {
					owners = append(owners, u)
				}
			}
			cm.Data["k"] = o.value
		}
		o.mayStay = o.mayStay || !e.owned
		fp := fmt.Sprint(cm.Data["k"], owners)
		if o.value != cm.Data["k"] || !slices.Equal(o.owners, owners) || o.fingerprint != fp {
			o.value, o.owners, o.fingerprint = cm.Data["k"], owners, fp
			m.showChange(e.key)
		}
	}
	done.obs = m.observe(e.key)
	return done
}

// noted says whether the disk or the AMW knows that the object may exist.
func (m *model) isRecorded(e effApply) bool {
	is := func(r resourceRef) bool { return keyOf(r) == e.key }
	for _, a := range m.amwsOf(e.id) {
		if slices.ContainsFunc(a.applied, is) {
			return true
		}
	}
	p := m.disk[e.id].Progress
	return p != nil && (slices.ContainsFunc(p.Possible, is) || slices.ContainsFunc(p.Objects,
		func(a appliedManifest) bool { return is(a.Ref) })) ||
		m.core.works[e.id] != nil && m.core.works[e.id].applied[e.key].Hash != ""
}

// remove decides as the real call does, first from what a watch showed the core.
func (m *model) remove(e effRemove) event {
	done := evRemoved{id: e.id, key: e.key}
	action := actionRead
	if e.obs != nil && e.owner != "" {
		action = e.next(e.instanceOf(e.obs))
	}
	o := m.objects[e.key]
	if o == nil {
		return done
	}
	if action == actionRead {
		action = e.next(m.instanceOf(e, o))
	}
	switch action {
	case actionLeave:
		return done
	case actionRelease:
		o.owners = slices.DeleteFunc(o.owners, func(u types.UID) bool { return u == e.owner })
		o.fingerprint += "-"
		o.mayStay = o.mayStay || e.release
		m.showChange(e.key)
		return done
	case actionDelete:
		if e.obs != nil && o.uid != e.obs.uid && e.uid != o.uid {
			done.err = conflictWhen(true)
			return done
		}
		if !o.deleting {
			o.deleting = true
			m.showChange(e.key)
		}
	}
	done.was = removalDeleting
	return done
}

// instanceOf is the object as the API server would answer with it now.
func (m *model) instanceOf(e effRemove, o *modelObject) instance {
	in := e.instanceOf(&observed{exists: true, uid: o.uid, deleting: o.deleting, owners: o.owners})
	if e.owner == "" { // the reference is known by its name
		in.ours, in.othersOwnIt = len(o.owners) > 0, len(o.owners) > 1
	}
	in.isFresh = true
	return in
}

// collect is the garbage collector: it ends deletions and deletes what lost
// all its owners.
func (m *model) collectGarbage() {
	alive := map[types.UID]bool{}
	for _, a := range m.amws {
		alive[a.uid] = true
	}
	for _, key := range slices.SortedFunc(maps.Keys(m.objects), compareKeys) {
		o := m.objects[key]
		orphaned := len(o.owners) > 0 && !slices.ContainsFunc(o.owners, func(u types.UID) bool { return alive[u] })
		if o.deleting || orphaned {
			delete(m.objects, key)
			m.showChange(key)
		}
	}
}

func (m *model) order(id workID) {
	o := m.orders[id]
	if o == nil {
		// A real server begins at 1 again. Here an acknowledgement of the life
		// before is told apart by its generation.
		o = &modelOrder{generation: m.lastGenerations[id]}
		m.orders[id] = o
	}
	if o.deleting {
		return
	}
	m.value++
	o.generation++
	o.applied = false
	o.objects = map[string]string{}
	for _, n := range modelNames {
		if rapid.Bool().Draw(m.t, n) {
			name := string(id) + n
			if n == "shared" {
				name = n
			}
			o.objects[name] = fmt.Sprint(m.value)
		}
	}
	o.orphan = rapid.IntRange(0, 5).Draw(m.t, "orphan") == 0
	o.name = rapid.SampledFrom([]string{"", string(id), "n-" + string(id), "n-" + string(id), "same", "b",
		"not a name"}).Draw(m.t, "name")
	o.executor = rapid.IntRange(0, 3).Draw(m.t, "executor") == 0
	o.leave, o.strategies = map[string]bool{}, map[string]workv1.UpdateStrategyType{}
	for _, name := range slices.Sorted(maps.Keys(o.objects)) {
		o.leave[name] = rapid.IntRange(0, 5).Draw(m.t, "leave "+name) == 0
		if kind := rapid.SampledFrom([]workv1.UpdateStrategyType{"", "", "", workv1.UpdateStrategyTypeCreateOnly,
			workv1.UpdateStrategyTypeReadOnly, workv1.UpdateStrategyTypeServerSideApply}).Draw(
			m.t, "strategy"); kind != "" {
			o.strategies[name] = kind
		}
	}
	m.publish(id)
}

func (m *model) publish(id workID) {
	o := m.orders[id]
	b := work.Bundle{}
	for _, name := range slices.Sorted(maps.Keys(o.objects)) {
		b.Manifests = append(b.Manifests, configMap("ns", name, "k", o.objects[name]))
	}
	if o.generation%3 > 0 {
		b.ManifestConfigs = []workv1.ManifestConfigOption{{
			ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "*", Name: "*"},
			FeedbackRules: []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{
				{Name: "phase", Path: ".status.phase"}}}},
		}}
		if o.generation%3 > 1 {
			b.ManifestConfigs[0].ConditionRules = []workv1.ConditionRule{celRule("Ready", `object.status.phase == ""`)}
		}
	}
	if o.orphan {
		b.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	}
	b.DeleteOption = cmp.Or(b.DeleteOption, &workv1.DeleteOption{
		PropagationPolicy: workv1.DeletePropagationPolicyTypeSelectivelyOrphan, SelectivelyOrphan: &workv1.SelectivelyOrphan{},
	})
	for _, name := range slices.Sorted(maps.Keys(o.objects)) {
		if rules := b.DeleteOption.SelectivelyOrphan; rules != nil && o.leave[name] {
			rules.OrphaningRules = append(rules.OrphaningRules, workv1.OrphaningRule{Resource: "configmaps",
				Namespace: "ns", Name: name})
		}
		if kind := o.strategies[name]; kind != "" {
			b.ManifestConfigs = append(b.ManifestConfigs, workv1.ManifestConfigOption{
				ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "ns",
					Name: name}, UpdateStrategy: &workv1.UpdateStrategy{Type: kind},
			})
		}
	}
	if o.executor {
		b.Executer = &workv1.ManifestWorkExecutor{Subject: workv1.ManifestWorkExecutorSubject{
			Type: workv1.ExecutorSubjectTypeServiceAccount}}
	}
	data, err := json.Marshal(b)
	if err != nil {
		m.t.Fatal(err)
	}
	s, err := decodeSpec(id, o.generation, "maestro", fmt.Sprintf(`{"name":%q}`, o.name), o.deleting, data, m.now)
	if err != nil {
		m.t.Fatal(err)
	}
	if m.online {
		m.specsInFlight = append(m.specsInFlight, evSpec{spec: s, ack: func() { m.checkAcknowledged(s) }})
	}
}

// acked checks I6: what is acknowledged is on disk, or something newer is.
func (m *model) checkAcknowledged(s *spec) {
	d, ok := m.disk[s.ID]
	if !ok || d.Spec == nil {
		if o := m.orders[s.ID]; o != nil && !o.deleting && s.Generation == o.generation && !s.Deleting {
			m.t.Fatalf("%s generation %d is acknowledged and not on disk (I6)", s.ID, s.Generation)
		}
		return
	}
	if d.Spec.Generation < s.Generation && !d.Spec.Deleting {
		m.t.Fatalf("%s generation %d is acknowledged, the disk has %d (I6)", s.ID, s.Generation, d.Spec.Generation)
	}
}

// compare is a server's part of a comparison by digests. It does not look at
// statuses, so as soon as there is one there is always a difference.
func (m *model) compareDigests(say effPublish) {
	if !m.digests {
		return
	}
	var ours []work.WorkState
	for id, o := range m.orders {
		ours = append(ours, work.WorkState{ID: string(id), Version: o.generation, Deleting: o.deleting})
	}
	switch data := say.data.(type) {
	case work.Digest:
		items := digest.Works(ours)
		a := work.DigestAnswer{Same: digest.Root(items) == data.Root}
		if !a.Same {
			a.Bits = 1
			a.Buckets = digest.Buckets(items, a.Bits)
		}
		m.events = append(m.events, evDigest{a})
	case work.BucketWorks:
		known := map[workID]work.WorkState{}
		for _, w := range data.Works {
			known[workID(w.ID)] = w
		}
		for _, id := range slices.Sorted(maps.Keys(m.orders)) {
			o, has := m.orders[id], known[id]
			if slices.Contains(data.Buckets, digest.Bucket(string(id), data.Bits)) &&
				(has.Version < o.generation || o.deleting) {
				m.publish(id)
			}
		}
	}
}

func (m *model) resync(versions []work.SpecVersion) {
	known := map[workID]int64{}
	for _, v := range versions {
		known[workID(v.ID)] = v.Version
	}
	for _, id := range slices.Sorted(maps.Keys(m.orders)) {
		if o := m.orders[id]; o.deleting || known[id] < o.generation {
			m.publish(id)
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

func (m *model) deliverStatus(i int) {
	ev := m.sends[i]
	m.sends = slices.Delete(m.sends, i, i+1)
	ok := m.online && rapid.IntRange(0, 9).Draw(m.t, "status lost") > 0
	if m.online {
		m.status(ev)
	}
	m.events = append(m.events, evSent{id: ev.id, seq: ev.seq, hash: ev.hash, accepted: ok})
}

func (m *model) status(ev *statusEvent) {
	o := m.orders[ev.id]
	if o == nil || ev.seq <= o.sequence {
		return
	}
	if meta.IsStatusConditionTrue(ev.status.Conditions, work.ConditionDeleted) {
		if !o.deleting || ev.version != o.generation {
			return
		}
		for key, obj := range m.objects {
			if slices.ContainsFunc(m.amwsOf(ev.id), func(a *amwState) bool {
				return slices.Contains(obj.owners,
					a.uid)
			}) {
				m.t.Fatalf("%s is acknowledged as deleted, and owns %s (I9)", ev.id, key)
			}
		}
		m.lastGenerations[ev.id] = o.generation
		delete(m.orders, ev.id)
		return
	}
	if ev.version != o.generation {
		return
	}
	o.sequence = ev.seq
	if meta.IsStatusConditionTrue(ev.status.Conditions, workv1.WorkDeleting) {
		return // with what was said last, maybe of an older generation
	}
	o.applied = meta.IsStatusConditionTrue(ev.status.Conditions, workv1.WorkApplied) || len(o.objects) == 0
	o.phases = map[string]string{}
	for _, mc := range ev.status.ResourceStatus {
		phase := feedbackOf(mc)["phase"]
		o.phases[mc.ResourceMeta.Name] = phase
		if o.generation%3 > 1 && meta.IsStatusConditionTrue(mc.Conditions, workv1.ManifestAvailable) &&
			meta.IsStatusConditionTrue(mc.Conditions, "Ready") != (phase == "") {
			m.t.Fatalf("%s: %s is in phase %q, and its conditions say %s", ev.id, mc.ResourceMeta.Name, phase,
				conditionText(mc.Conditions))
		}
	}
}

func (m *model) ids() []workID { return []workID{"a", "b", "c"} }

// act does one random thing.
func (m *model) act() {
	t := m.t
	pick := func(n int, what string) int { return rapid.IntRange(0, n-1).Draw(t, what) }
	id := rapid.SampledFrom(m.ids()).Draw(t, "id")
	switch action := rapid.SampledFrom([]string{
		"order", "order", "delete", "call", "call", "call", "call", "event", "event", "event", "event", "sync", "sync",
		"spec", "spec", "status", "status",
		"collect", "tick", "crash", "disconnect", "connect", "connect", "drift", "flap", "loss", "api", "relist", "ask",
		"rights", "late",
	}).Draw(t, "action"); action {
	case "order":
		m.order(id)
	case "delete":
		if o := m.orders[id]; o != nil {
			o.deleting = true
			m.publish(id)
		}
	case "call":
		if len(m.calls) == 0 {
			return
		}
		i := pick(len(m.calls), "which")
		e := m.calls[i]
		m.calls = slices.Delete(m.calls, i, i+1)
		fate := pick(8, "fate")
		switch {
		case !m.apiUp || fate == 0:
			m.events = append(m.events, failedAnswer(e))
		case fate == 1: // done, and the answer lost
			m.execute(e)
			m.events = append(m.events, failedAnswer(e))
		default:
			m.events = append(m.events, m.execute(e))
		}
	case "event":
		if len(m.events) > 0 {
			ev := m.events[0]
			m.events = m.events[1:]
			m.step(ev)
		}
	case "sync":
		if len(m.unflushed) > 0 {
			m.flushDisk(1 + pick(len(m.unflushed), "how many"))
		}
	case "spec":
		if len(m.specsInFlight) > 0 {
			// Works overtake each other; the events of one stay in order, since a
			// work that was deleted may be made again from generation 1.
			i := pick(len(m.specsInFlight), "which")
			i = slices.IndexFunc(m.specsInFlight, func(ev evSpec) bool { return ev.spec.ID == m.specsInFlight[i].spec.ID })
			ev := m.specsInFlight[i]
			if rapid.IntRange(0, 5).Draw(t, "twice") > 0 {
				m.specsInFlight = slices.Delete(m.specsInFlight, i, i+1)
			}
			m.step(ev)
		}
	case "loss":
		if len(m.specsInFlight) > 0 {
			m.specsInFlight = m.specsInFlight[1:]
		}
	case "status":
		if len(m.sends) > 0 {
			m.deliverStatus(pick(len(m.sends), "which"))
		}
	case "collect":
		m.collectGarbage()
	case "late":
		m.executeLateCalls(1)
	case "tick":
		m.now = m.now.Add(time.Duration(pick(5000, "ms")) * time.Millisecond)
		m.step(evTick{})
	case "crash":
		for _, e := range m.calls { // what was under way happened, or not, or will a moment later
			switch fate := pick(3, "happened"); {
			case !m.apiUp || fate == 0:
			case fate == 1:
				m.execute(e)
			default:
				if w, ok := e.(effApply); ok && !w.onlyRead {
					m.lateCalls = append(m.lateCalls, e)
				}
			}
		}
		if n := len(m.unflushed); n > 0 { // and what was written may have reached the disk, nobody knows
			for i := range m.unflushed {
				m.unflushed[i].ack, m.unflushed[i].then = nil, nil
			}
			m.flushDisk(pick(n+1, "reached"))
		}
		if rapid.IntRange(0, 3).Draw(t, "clock steps back") == 0 {
			m.now = m.now.Add(-time.Hour)
		}
		m.lateUntil = m.now.Add(lateCallWindow)
		m.restart()
	case "disconnect":
		m.disconnect()
	case "connect":
		m.connect()
	case "drift":
		m.drift(pick(7, "drift"))
	case "flap":
		keys := slices.SortedFunc(maps.Keys(m.objects), compareKeys)
		if len(keys) == 0 {
			return
		}
		m.changePhase(keys[pick(len(keys), "which")], pick(3*reportBurst, "how often"))
	case "api":
		m.apiUp = !m.apiUp
	case "rights":
		m.denied = !m.denied
	case "relist":
		m.listAMWs()
		if m.watched {
			for _, key := range slices.SortedFunc(maps.Keys(m.wanted), compareKeys) {
				m.events = append(m.events, evObject{key, m.observe(key)})
			}
		}
	case "ask":
		if m.online {
			m.step(evStatusResync{})
		}
	}
}

// flap is an object's controller that changes its mind.
func (m *model) changePhase(key objectKey, times int) {
	for range times {
		m.value++
		m.objects[key].phase = fmt.Sprint("p", m.value)
		m.showChange(key)
	}
}

// happen lets calls of an agent that was killed take effect.
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

func (m *model) connect() {
	if !m.online {
		m.online = true
		m.step(evConnected{})
	}
}

func (m *model) disconnect() {
	if m.online {
		m.online, m.specsInFlight = false, nil
		m.step(evDisconnected{})
	}
}

func failedAnswer(e effect) event {
	err := &opError{kind: errTransport, message: "no answer"}
	switch e := e.(type) {
	case effDiscover:
		return evMapped{gvk: e.gvk, err: err}
	case effProbe:
		return evProbed{up: false}
	case effCreateAMW:
		return evAMWDone{id: e.id, name: e.name, op: amwCreate, err: err}
	case effTakeOverAMW:
		return evAMWDone{id: e.id, name: e.name, op: amwTakeOver, err: err}
	case effDeleteAMW:
		return evAMWDone{id: e.id, name: e.name, op: amwDelete, err: err}
	case effFinalizeAMW:
		return evAMWDone{id: e.id, name: e.name, op: amwFinalize, err: err}
	case effRecordAMW:
		return evAMWDone{id: e.id, name: e.name, op: amwRecord, err: err}
	case effApply:
		return evApplied{id: e.id, ordinal: e.ordinal, key: e.key, hash: e.hash, onlyRead: e.onlyRead, err: err}
	case effRemove:
		return evRemoved{id: e.id, key: e.key, err: err}
	}
	panic(fmt.Sprintf("no failure of %T", e))
}

// drift is somebody else in the cluster.
func (m *model) drift(kind int) {
	keys := slices.SortedFunc(maps.Keys(m.objects), compareKeys)
	names := slices.Sorted(maps.Keys(m.amws))
	switch {
	case kind == 0 && len(keys) > 0: // an object is deleted
		key := keys[m.rv%uint64(len(keys))]
		delete(m.objects, key)
		m.showChange(key)
	case kind == 1 && len(keys) > 0: // a field is taken over
		o := m.objects[keys[m.rv%uint64(len(keys))]]
		o.value, o.fingerprint = "drift", "lost"
		m.showChange(keys[m.rv%uint64(len(keys))])
	case kind == 2 && len(names) > 0: // an AMW is deleted by hand
		a := m.amws[names[m.rv%uint64(len(names))]]
		a.deleting = true
		m.showAMWChange(a.name, a)
	case kind == 3 && len(names) > 0: // another agent held it meanwhile, and let go
		a := m.amws[names[m.rv%uint64(len(names))]]
		a.foreign, a.evicting = true, true
		m.showAMWChange(a.name, a)
	case kind == 4 && len(names) > 0: // an agent held it that names AMWs by the work's id
		m.rename(m.amws[names[m.rv%uint64(len(names))]])
	}
}

// rename leaves what an agent of ours of an earlier version leaves: everything
// of the work belongs to an AMW that has the work's id for a name.
func (m *model) rename(a *amwState) {
	name := amwName(a.creator())
	if a.deleting || m.amws[name] != nil || m.orders[workID(name)] == nil {
		return
	}
	former := &amwState{name: name, uid: m.newUID(), finalizers: a.finalizers, applied: a.applied}
	for _, key := range slices.SortedFunc(maps.Keys(m.objects), compareKeys) {
		if o := m.objects[key]; slices.Contains(o.owners, a.uid) {
			o.owners = slices.DeleteFunc(slices.Clone(o.owners), func(u types.UID) bool { return u == a.uid })
			o.owners = append(o.owners, former.uid)
			o.fingerprint += "r"
			m.showChange(key)
		}
	}
	m.amws[name] = former
	m.showAMWChange(name, nil)
	delete(m.amws, a.name)
	m.showAMWChange(a.name, a)
}

// settle lets everything succeed until nothing happens any more.
func (m *model) settle() {
	m.apiUp, m.denied = true, false
	m.connect()
	again, end := 2, m.now.Add(10*time.Minute)
	for range 5000 {
		switch {
		case len(m.events) > 0:
			ev := m.events[0]
			m.events = m.events[1:]
			m.step(ev)
		case len(m.unflushed) > 0:
			m.flushDisk(len(m.unflushed))
		case len(m.calls) > 0:
			e := m.calls[0]
			m.calls = m.calls[1:]
			m.events = append(m.events, m.execute(e))
		case len(m.specsInFlight) > 0:
			ev := m.specsInFlight[0]
			m.specsInFlight = m.specsInFlight[1:]
			m.step(ev)
		case len(m.sends) > 0:
			ev := m.sends[0]
			m.sends = m.sends[1:]
			m.status(ev)
			m.events = append(m.events, evSent{id: ev.id, seq: ev.seq, hash: ev.hash, accepted: true})
		case m.collectable():
			m.collectGarbage()
		default:
			m.executeLateCalls(len(m.lateCalls))
			if len(m.events) > 0 {
				continue
			}
			if at := m.core.nextWake(); !at.IsZero() && at.Before(end) {
				m.now = at
				m.step(evTick{})
				continue
			}
			if again == 0 {
				return
			}
			if again == 2 { // all is quiet: now an object does not come to rest, with nothing else to wake anybody
				for _, key := range slices.SortedFunc(maps.Keys(m.objects), compareKeys) {
					m.changePhase(key, 2*reportBurst)
				}
			}
			again-- // the server asks and tells again what may have been lost
			end = m.now.Add(10 * time.Minute)
			m.disconnect()
			m.connect()
			m.step(evStatusResync{})
		}
	}
	m.t.Fatalf("the agent does not come to rest: %d calls, %d events, %d specs", len(m.calls), len(m.events),
		len(m.specsInFlight))
}

func (m *model) collectable() bool {
	alive := map[types.UID]bool{}
	for _, a := range m.amws {
		alive[a.uid] = true
	}
	for _, o := range m.objects {
		if o.deleting || len(o.owners) > 0 && !slices.ContainsFunc(o.owners, func(u types.UID) bool {
			return alive[u]
		}) {
			return true
		}
	}
	return false
}

// check compares the cluster with what was ordered.
func (m *model) check() {
	want := map[string][]string{}
	for _, id := range slices.Sorted(maps.Keys(m.orders)) {
		o := m.orders[id]
		if o.deleting {
			m.t.Fatalf("%s is not deleted (I9)", id)
		}
		if !o.applied {
			m.t.Fatalf("%s generation %d is not reported as applied", id, o.generation)
		}
		listed := 0
		for name, v := range o.objects {
			obj := m.objects[objectKey{configMaps, "ns", name}]
			if obj != nil {
				listed++
			}
			if o.generation%3 > 0 && obj != nil && obj.phase != o.phases[name] {
				m.t.Fatalf("%s: %s is in phase %q, the server was told %q", id, name, obj.phase, o.phases[name])
			}
			switch o.strategies[name] {
			case workv1.UpdateStrategyTypeReadOnly:
				want[name] = append(want[name], "") // may be there, or not
			case workv1.UpdateStrategyTypeCreateOnly:
				want[name] = append(want[name], "any")
			default:
				want[name] = append(want[name], v)
			}
			a := m.amws[m.core.works[id].amw]
			owns := obj != nil && a != nil && slices.Contains(obj.owners, a.uid)
			if leave := o.orphan || o.leave[name]; o.strategies[name] != workv1.UpdateStrategyTypeReadOnly &&
				owns == leave {
				m.t.Fatalf("%s is owned by %s: %v, want the opposite", name, id, owns)
			}
		}
		a := m.amws[m.core.works[id].amw]
		if a == nil || a.deleting || a.foreign || a.evicting || len(a.applied) != listed {
			m.t.Fatalf("%s: AppliedManifestWork %+v, want %d objects listed", id, a, listed)
		}
	}
	for name, values := range want {
		o := m.objects[objectKey{configMaps, "ns", name}]
		switch {
		case !slices.ContainsFunc(values, func(v string) bool { return v != "" }): // only read
		case o == nil, !slices.Contains(values, "any") && !slices.Contains(values, o.value):
			m.t.Fatalf("object %s is %+v, want one of %v", name, o, values)
		}
	}
	for key, o := range m.objects {
		if want[key.Name] == nil && (len(o.owners) > 0 || !o.mayStay) {
			m.t.Fatalf("%s is left behind: %+v (I9)", key, o)
		}
	}
	for name := range m.amws {
		if w := m.core.works[m.core.nameHolders[name]]; w == nil || w.amw != name || m.orders[w.id] == nil {
			m.t.Fatalf("the AppliedManifestWork %s is left behind (I9)", name)
		}
	}
	if extra := len(m.core.objects); extra > 12 {
		m.t.Fatalf("%d objects are still of interest", extra)
	}
}

// Whatever is lost, repeated, reordered or killed, and at whatever moment: when
// it ends, the cluster is as ordered and the server knows (I6, I9, I12).
func TestI12TheCoreConvergesFromEveryHistory(t *testing.T) {
	for i := range 10 { // of as many histories each as -rapid.checks says
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				m := newModel(t)
				for range rapid.IntRange(10, 120).Draw(t, "steps") {
					m.act()
				}
				m.settle()
				m.check()
			})
		})
	}
}
