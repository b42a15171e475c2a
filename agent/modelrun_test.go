package agent

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"atoll.dev/api/work"

	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"
)

func (m *model) ids() []work.ID { return []work.ID{"a", "b", "c"} }

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

// settle lets every call succeed until the model is idle. Then it checks the model, changes the status of some objects,
// and lets every call succeed until the model is idle again.
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
			if again == 1 { // the history ended, and since then no object changed
				m.check()
				m.changeMoreThanReported()
			}
			again-- // the server repeats requests and specs that may have been lost
			end = m.now.Add(10 * time.Minute)
			m.disconnect()
			m.connect()
			m.step(evStatusResync{})
		}
	}
	m.fatalf("the agent does not come to rest: %d calls, %d events, %d specs", len(m.calls), len(m.events),
		len(m.specsInFlight))
}

// changeMoreThanReported changes one object of each work, and the object of all works, more often than the agent may
// report at once. Which object of a work it is depends on the history.
func (m *model) changeMoreThanReported() {
	byPrefix := map[byte][]objectKey{}
	for _, key := range slices.SortedFunc(maps.Keys(m.objects), compareKeys) {
		byPrefix[key.Name[0]] = append(byPrefix[key.Name[0]], key)
	}
	for _, prefix := range slices.Sorted(maps.Keys(byPrefix)) {
		keys := byPrefix[prefix]
		m.changePhase(keys[m.value%len(keys)], 2*reportBurst)
	}
}

// check compares the cluster with the orders.
func (m *model) check() {
	want := map[string][]string{}
	for _, id := range slices.Sorted(maps.Keys(m.orders)) {
		o := m.orders[id]
		if o.deleting {
			m.fatalf("%s is not deleted (I9)", id)
		}
		if !o.applied {
			m.fatalf("%s generation %d is not reported as applied", id, o.generation)
		}
		listed := 0
		for name, v := range o.objects {
			obj := m.objects[objectKey{configMaps, "ns", name}]
			if obj != nil {
				listed++
			}
			if o.generation%3 > 0 && obj != nil && obj.phase != o.phases[name] {
				m.fatalf("%s: %s is in phase %q, the server knows %q", id, name, obj.phase, o.phases[name])
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
				m.fatalf("%s is owned by %s: %v, want the opposite", name, id, owns)
			}
		}
		a := m.amws[m.core.works[id].amw]
		if a == nil || a.deleting || a.foreign || a.evicting || len(a.applied) != listed {
			m.fatalf("%s: AppliedManifestWork %+v, want %d objects listed", id, a, listed)
		}
	}
	for name, values := range want {
		o := m.objects[objectKey{configMaps, "ns", name}]
		switch {
		case !slices.ContainsFunc(values, func(v string) bool { return v != "" }): // only read
		case o == nil, !slices.Contains(values, "any") && !slices.Contains(values, o.value):
			m.fatalf("object %s is %+v, want one of %v", name, o, values)
		}
	}
	for key, o := range m.objects {
		if want[key.Name] == nil && (len(o.owners) > 0 || !o.mayStay) {
			m.fatalf("%s is left behind: %+v (I9)", key, o)
		}
	}
	for name := range m.amws {
		if w := m.core.works[m.core.nameHolders[name]]; w == nil || w.amw != name || m.orders[w.id] == nil {
			m.fatalf("the AppliedManifestWork %s is left behind (I9)", name)
		}
	}
	if extra := len(m.core.objects); extra > 12 {
		m.fatalf("%d objects are still of interest", extra)
	}
}

// Whatever is lost, repeated, reordered or killed, and at whatever moment: when
// it ends, the cluster is as ordered and the server knows (I6, I9, I12).
func TestI12TheCoreConvergesFromEveryHistory(t *testing.T) {
	for i := range 4 { // of as many histories each as -rapid.checks says
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
