package delivery

import (
	"cmp"
	"container/heap"
	"maps"
	"slices"
	"strings"
	"time"

	"atoll.dev/api/work"
)

// Machine has the unacknowledged works and decides which to send next. It is not safe
// for concurrent use.
type Machine struct {
	cfg       Config
	connected bool
	lanes     map[laneKey]*lane
	ready     [2][]*lane  // lanes that may send now, in turn, by class
	turn      class       // class that has the next turn
	timers    [2]laneHeap // lanes that wait for a repetition, ordered by time
	pace      pace        // of repeated deletions
	token     uint64      // of the last Send
}

// class separates deletions from all other works.
type class int

const (
	changes class = iota
	deletions
)

func classOf(w Work) class {
	if w.Deleting {
		return deletions
	}
	return changes
}

type laneKey struct {
	consumer work.Consumer
	class    class
}

// pace is a token bucket: it allows rate repetitions a second, and a burst of rate after a pause.
type pace struct {
	rate   int
	tokens float64
	at     time.Time
}

// available returns how many repetitions may happen now.
func (p *pace) available(now time.Time) int {
	if p.at.IsZero() {
		p.tokens = float64(p.rate)
	} else if d := now.Sub(p.at); d > 0 {
		p.tokens = min(p.tokens+d.Seconds()*float64(p.rate), float64(p.rate))
	}
	p.at = now
	return int(p.tokens)
}

// next returns the time of the next allowed repetition.
func (p *pace) next() time.Time {
	if p.tokens >= 1 || p.at.IsZero() {
		return p.at
	}
	return p.at.Add(time.Duration((1-p.tokens)*float64(time.Second)/float64(p.rate)) + 1)
}

// New returns a Machine that holds nothing and is not connected.
func New(cfg Config) *Machine {
	cfg = cfg.withDefaults()
	return &Machine{cfg: cfg, lanes: map[laneKey]*lane{}, pace: pace{rate: cfg.DeleteRate}}
}

// Add adds a work that its agent has not acknowledged. If the Machine has an earlier
// generation of the work that was not sent yet, Add replaces it. If the Machine has the
// same or a later generation, Add returns false and changes nothing.
func (m *Machine) Add(w Work) bool {
	l, it := m.findItem(w.Consumer, w.ID)
	switch {
	case it == nil:
		l, it = m.add(w)
	case it.finished:
		l.reactivate(it, w)
	case !w.supersedes(it.work):
		return false
	default:
		it.attempts = 0
		l, it = m.change(l, it, w)
	}
	l.queue(it)
	m.reschedule(l)
	return true
}

// Recover adds an unacknowledged work that was sent attempts times before this Machine
// was created. A deletion that was sent before waits for the pace of deletions; every
// other work is sent at once.
func (m *Machine) Recover(now time.Time, w Work, attempts int) {
	if _, it := m.findItem(w.Consumer, w.ID); it != nil || !w.Deleting || attempts == 0 {
		m.Add(w)
		return
	}
	l, it := m.add(w)
	it.attempts, it.ahead = attempts, true
	l.ahead++
	l.wait(it, now)
	m.reschedule(l)
}

// add creates an item in the lane of its work, in no queue yet.
func (m *Machine) add(w Work) (*lane, *item) {
	l := m.laneOf(w)
	it := &item{work: w, index: -1}
	l.items[w.ID] = it
	return l, it
}

// change replaces the work of an item. A work that becomes a deletion moves to the lane of
// deletions; while a message of the work is in flight, the move waits for its EndSend, so that
// the deletion cannot overtake the message.
func (m *Machine) change(l *lane, it *item, w Work) (*lane, *item) {
	it.work = w
	if it.inflight || l.class == classOf(w) {
		return l, it
	}
	attempts := it.attempts
	l.drop(it)
	m.reschedule(l)
	l, it = m.add(w)
	it.attempts = attempts
	return l, it
}

// Acknowledge removes a work whose agent has acknowledged its generation or a later one. It
// does not remove deletions; see Forget.
func (m *Machine) Acknowledge(consumer work.Consumer, id work.ID, generation int64) {
	l, it := m.findItem(consumer, id)
	if it == nil || it.finished || it.work.Deleting || generation < it.work.Generation {
		return
	}
	l.drop(it)
	m.reschedule(l)
}

// Forget removes the work w: its bundle is removed, or another server has stored its
// acknowledgement. A later state of the work, which supersedes w, stays.
func (m *Machine) Forget(w Work) {
	l, it := m.findItem(w.Consumer, w.ID)
	if it == nil || it.finished || it.work.supersedes(w) {
		return
	}
	l.drop(it)
	m.reschedule(l)
}

// IsCurrent reports whether a Send may be published as the given work, which the store
// may have at a later generation than the Send. The caller asks right before the message
// leaves. A Send is stale when its work has changed, is acknowledged or deleted, or when
// the lane was dropped since Next. The caller does not publish a stale Send, and ends it
// with NotSent.
func (m *Machine) IsCurrent(send Send, published Work) bool {
	_, it := m.findItem(send.Consumer, send.ID)
	return it != nil && it.inflight && !it.finished && it.token == send.token && !it.work.supersedes(published)
}

// Resend sends a work at once, even if it was sent or acknowledged before: the agent's
// list shows that the agent lacks it.
func (m *Machine) Resend(w Work) {
	l, it := m.findItem(w.Consumer, w.ID)
	switch {
	case it == nil:
		l, it = m.add(w)
	case it.finished:
		l.reactivate(it, w)
	case w.supersedes(it.work):
		l, it = m.change(l, it, w)
	}
	it.attempts = 0
	l.queue(it)
	m.reschedule(l)
}

// Postpone postpones the next repetition of a work: the agent's list shows that the agent
// holds this generation. Its status has not arrived, so the work stays unacknowledged.
func (m *Machine) Postpone(now time.Time, consumer work.Consumer, id work.ID, generation int64) {
	l, it := m.findItem(consumer, id)
	if it == nil || it.work.Deleting || generation < it.work.Generation || it.inflight {
		return
	}
	if !it.ahead {
		it.ahead = true
		l.ahead++
	}
	it.attempts = max(it.attempts, 1)
	l.wait(it, now.Add(m.retryPause(l, it.attempts)))
	m.reschedule(l)
}

// RecordContact notes that an event of a consumer's agent arrived: a lane that repeated with growing
// pauses, since its agent was silent, repeats at its usual pace again.
func (m *Machine) RecordContact(consumer work.Consumer) {
	for _, c := range []class{changes, deletions} {
		l := m.lanes[laneKey{consumer, c}]
		if l == nil {
			continue
		}
		l.contacted = true
		if l.silent > 0 {
			l.silent = 0
			l.next = l.repeated.Add(m.cfg.Base)
			m.reschedule(l)
		}
	}
}

// Connect notes that the carrier is connected. Sent and unacknowledged works may be lost,
// so the Machine sends them again: deletions at their pace, all others at once.
func (m *Machine) Connect() {
	m.connected = true
	for _, key := range slices.SortedFunc(maps.Keys(m.lanes), compareLanes) {
		l := m.lanes[key]
		l.silent, l.contacted, l.left = 0, false, 0
		l.next = time.Time{}
		for _, it := range sortItems(l.waiting) {
			if l.class == deletions {
				l.wait(it, time.Time{})
				continue
			}
			it.attempts = 0
			l.queue(it)
		}
		m.reschedule(l)
	}
}

func compareLanes(a, b laneKey) int {
	return cmp.Or(strings.Compare(string(a.consumer), string(b.consumer)), cmp.Compare(a.class, b.class))
}

// Disconnect notes that the carrier is not connected. Next returns no works until Connect.
func (m *Machine) Disconnect() { m.connected = false }

// EndSend ends a Send: published is the work that the message had, possibly a later state
// than that of the Send, and outcome is how the publish ended. EndSend changes nothing when
// the lane was dropped since the Send.
func (m *Machine) EndSend(now time.Time, send Send, published Work, outcome Outcome) {
	l, it := m.findItem(send.Consumer, send.ID)
	if it == nil || !it.inflight || it.token != send.token {
		return
	}
	it.inflight = false
	if it.finished { // acknowledged or forgotten before the carrier's answer came
		l.remove(it)
		m.reschedule(l)
		return
	}
	if outcome == Published && published.supersedes(it.work) {
		it.work = published
	}
	switch l, it = m.change(l, it, it.work); {
	case it.resend || it.work.supersedes(published):
		l.queue(it)
	case outcome == NotSent:
		it.attempts = max(it.attempts-1, 0)
		l.wait(it, now.Add(m.retryPause(l, 1)))
	default:
		if !it.ahead { // published as a deletion, although the Send was a change
			it.ahead = true
			l.ahead++
		}
		l.wait(it, now.Add(m.retryPause(l, max(it.attempts, 1))))
	}
	m.reschedule(l)
}

// Pending returns the number of unacknowledged works, and how many of them were sent.
func (m *Machine) Pending() (works, ahead int) {
	for _, l := range m.lanes {
		works += len(l.items) - l.finished
		ahead += l.ahead
	}
	return works, ahead
}

// PendingOf returns the numbers of Pending for one consumer.
func (m *Machine) PendingOf(consumer work.Consumer) (works, ahead int) {
	for _, c := range []class{changes, deletions} {
		if l := m.lanes[laneKey{consumer, c}]; l != nil {
			works, ahead = works+len(l.items)-l.finished, ahead+l.ahead
		}
	}
	return works, ahead
}

// Drop removes all works of a consumer, when another server delivers to it now or its lane
// begins anew.
func (m *Machine) Drop(consumer work.Consumer) {
	for _, c := range []class{changes, deletions} {
		l := m.lanes[laneKey{consumer, c}]
		if l == nil {
			continue
		}
		if l.index >= 0 {
			heap.Remove(&m.timers[c], l.index)
		}
		if l.listed {
			m.ready[c] = slices.DeleteFunc(m.ready[c], func(r *lane) bool { return r == l })
		}
		delete(m.lanes, l.laneKey)
	}
}

// DropIf removes all works of the consumers for which drop returns true.
func (m *Machine) DropIf(drop func(consumer work.Consumer) bool) {
	for key := range m.lanes {
		if drop(key.consumer) {
			m.Drop(key.consumer)
		}
	}
}

func (m *Machine) laneOf(w Work) *lane {
	key := laneKey{w.Consumer, classOf(w)}
	l := m.lanes[key]
	if l == nil {
		l = &lane{laneKey: key, items: map[work.ID]*item{}, index: -1}
		m.lanes[key] = l
	}
	return l
}

func (m *Machine) findItem(consumer work.Consumer, id work.ID) (*lane, *item) {
	for _, c := range []class{changes, deletions} {
		if l := m.lanes[laneKey{consumer, c}]; l != nil && l.items[id] != nil {
			return l, l.items[id]
		}
	}
	return nil, nil
}
