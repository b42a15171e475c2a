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

// showChange gives an object the next resource version and sends the change to the watch.
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

// execute executes a call on the cluster and returns its answer.
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
		action = e.next(e.watchedInstance(e.obs))
	}
	if action == actionAwait {
		done.outcome = removalDeleting
		return done
	}
	o := m.objects[e.key]
	if o == nil {
		return done
	}
	if action == actionRead {
		action = e.next(m.readInstance(e, o))
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
	done.outcome = removalDeleting
	return done
}

// readInstance is the object as the API server would answer with it now.
func (m *model) readInstance(e effRemove, o *modelObject) instance {
	in := e.watchedInstance(&observed{exists: true, uid: o.uid, deleting: o.deleting, owners: o.owners})
	if e.owner == "" { // the reference is known by its name
		in.ours, in.othersOwnIt = len(o.owners) > 0, len(o.owners) > 1
	}
	in.isFresh = true
	return in
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
