package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"atoll.dev/api/work"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
)

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
	if _, wanted := m.wanted[key]; wanted && m.watched && !m.watchDenied {
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
func (m *model) amwsOf(id work.ID) []*amwState {
	var all []*amwState
	for _, name := range slices.Sorted(maps.Keys(m.amws)) {
		a, w := m.amws[name], m.core.works[id]
		if a.work == id || a.work == "" && (w != nil && w.amw == name || work.ID(name) == id &&
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
		if m.kindUnknown {
			return evMapped{gvk: e.gvk, err: &opError{kind: errNoKind, message: "no such kind"}}
		}
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
			if work.ID(e.name) != e.id {
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
			return evAMWDone{id: e.id, name: e.name, op: amwDelete, err: conflictWith(a)}
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
			return evAMWDone{id: e.id, name: e.name, op: amwFinalize, err: conflict()}
		}
		if !a.deleting {
			m.fatalf("the finalizer of %s is taken away although nobody deleted it", e.id)
		}
		delete(m.amws, e.name)
		m.showAMWChange(e.name, a)
		return evAMWDone{id: e.id, name: e.name, op: amwFinalize}
	case effRecordAMW:
		a := m.amws[e.name]
		if a == nil || a.uid != e.uid {
			return evAMWDone{id: e.id, name: e.name, op: amwRecord, err: conflictWith(a)}
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
		done.err = conflictWith(a)
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
	if m.isInterrupted() {
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

// conflictWith returns the error of a change that has another uid than a; nil when a does not exist.
func conflictWith(a *amwState) *opError {
	if a == nil {
		return nil
	}
	return conflict()
}

func conflict() *opError { return &opError{kind: errConflict, message: "conflict"} }

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
			m.fatalf("%s is only to be read for %s", e.key, e.id)
		}
		if !m.executingLateCall && !m.isRecorded(e) {
			m.fatalf("%s is applied for %s before that is on disk (I12)", e.key, e.id)
		}
		o := m.objects[e.key]
		if o == nil {
			o = &modelObject{uid: m.newUID()}
			m.objects[e.key] = o
		}
		var cm struct{ Data map[string]string }
		if err := json.Unmarshal(e.manifest, &cm); err != nil {
			m.fatalf("%v", err)
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

// isRecorded reports whether the disk or the AMW lists the object as possible.
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

// remove decides as the real call does, first by the last observation of a watch.
func (m *model) remove(e effRemove) event {
	done := evRemoved{id: e.id, key: e.key}
	action := actionRead
	if e.obs != nil && e.owner != "" {
		action = e.next(e.instanceOf(e.obs))
	}
	if action == actionAwait {
		done.was = removalDeleting
		return done
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
			done.err = conflict()
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

// collect is the garbage collector: it ends deletions and deletes objects without owners.
func (m *model) collectGarbage() {
	alive := map[types.UID]bool{}
	for _, a := range m.amws {
		alive[a.uid] = true
	}
	for _, key := range slices.SortedFunc(maps.Keys(m.objects), compareKeys) {
		o := m.objects[key]
		if o.held {
			continue
		}
		orphaned := len(o.owners) > 0 && !slices.ContainsFunc(o.owners, func(u types.UID) bool { return alive[u] })
		if o.deleting || orphaned {
			delete(m.objects, key)
			m.showChange(key)
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

// drift is another writer in the cluster.
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

// rename creates the state of an earlier version of our agent: all objects of the work belong to an
// AppliedManifestWork with the work's id as name.
func (m *model) rename(a *amwState) {
	name := amwName(a.creator())
	if a.deleting || m.amws[name] != nil || m.orders[work.ID(name)] == nil {
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

func (m *model) collectable() bool {
	alive := map[types.UID]bool{}
	for _, a := range m.amws {
		alive[a.uid] = true
	}
	for _, o := range m.objects {
		if o.held {
			continue
		}
		if o.deleting || len(o.owners) > 0 && !slices.ContainsFunc(o.owners, func(u types.UID) bool {
			return alive[u]
		}) {
			return true
		}
	}
	return false
}
