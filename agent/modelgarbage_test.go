package agent

import (
	"fmt"
	"maps"
	"slices"

	"atoll.dev/api/work"

	"k8s.io/apimachinery/pkg/types"
)

// collectGarbage acts as the garbage collector: it ends deletions and deletes objects without owners.
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

// changePhase acts as the controller of an object: it writes that many new phases, one after the other.
func (m *model) changePhase(key objectKey, times int) {
	for range times {
		m.value++
		m.objects[key].phase = fmt.Sprint("p", m.value)
		m.showChange(key)
	}
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
