package delivery

import (
	"cmp"
	"container/heap"
	"maps"
	"slices"
	"strings"
	"time"
)

// A Work is what is wanted of a consumer: a bundle at a generation, or its
// deletion.
type Work struct {
	Consumer   string
	ID         string
	Generation int64
	Deleting   bool
}

// supersedes says whether w, as read from the store, is news to one who has
// old. Reads can come out of order; a document never goes back.
func (w Work) supersedes(old Work) bool {
	return w.Generation > old.Generation || w.Generation == old.Generation && w.Deleting && !old.Deleting
}

// A Send is an order to publish a work. Exactly one Sent must follow it. Until
// then no other Send of the same work is given out, so a message never overtakes
// an earlier one of its work.
type Send struct {
	Work
	Attempt int // from 1; above 1 the agent may have it, and only its status was lost

	token uint64 // tells this Send from every other one
}

// Outcome is how a Send ended.
type Outcome int

const (
	Published Outcome = iota // the carrier has the message
	Lost                     // the carrier may have it, or will never take it: repeat it with back-off
	NotSent                  // it was not sent: repeat it soon
)

// Config bounds a Machine. The zero value means the defaults.
type Config struct {
	Window int // works sent to a consumer and not acknowledged; default 1000
	Burst  int // works that one lane sends before the next one's turn; default 16

	// A work that is not acknowledged is sent again after Base, twice that,
	// and so on up to Max; default 1 s and 60 s.
	Base, Max time.Duration

	// A lane repeats at most Retries works a Base (default 50). While nothing
	// at all is heard of its consumer it repeats Probes (default 10), and
	// doubles the pause each time, up to Max.
	Retries, Probes int

	// Deletions have lanes of their own, so they wait for no other work and no
	// other work waits for them. One that is not answered is sent again up to
	// every DeleteMax (default 5 min), and all of a region's together are not
	// repeated more often than DeleteRate times a second (default 50).
	DeleteMax  time.Duration
	DeleteRate int

	// Jitter returns a number in [0,1). A pause is spread from three to five
	// quarters by it. Default 0.5: none.
	Jitter func() float64
}

func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&c.Window, 1000)
	def(&c.Burst, 16)
	def(&c.Retries, 50)
	def(&c.Probes, 10)
	def(&c.DeleteRate, 50)
	if c.Base <= 0 {
		c.Base = time.Second
	}
	if c.Max <= 0 {
		c.Max = 60 * time.Second
	}
	if c.DeleteMax <= 0 {
		c.DeleteMax = 5 * time.Minute
	}
	if c.Jitter == nil {
		c.Jitter = func() float64 { return 0.5 }
	}
	return c
}

// Machine holds what is wanted and not yet acknowledged. It is not safe for
// concurrent use.
type Machine struct {
	cfg       Config
	connected bool
	lanes     map[laneKey]*lane
	ready     [2][]*lane  // lanes that may send now, in turn; those of deletions apart
	turn      class       // whose turn it is
	timers    [2]laneHeap // lanes that wait to repeat, by time
	pace      pace        // of repeated deletions
	token     uint64      // of the last Send
}

// class parts deletions from all other works.
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
	consumer string
	class    class
}

// pace lets so many things a second happen, and as many at once after a rest.
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

// next is when one may happen.
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

// Want takes a work that its agent has not acknowledged. A later generation
// replaces an earlier one that was not sent yet. It reports whether that was
// news, so that the work will be sent.
func (m *Machine) Want(w Work) bool {
	l, it := m.find(w.Consumer, w.ID)
	switch {
	case it == nil:
		l, it = m.add(w)
	case it.settled:
		l.reopen(it, w)
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

// Recover takes a work that was sent so many times before this Machine was
// made, and not acknowledged. A deletion among them is repeated when its turn
// comes.
func (m *Machine) Recover(now time.Time, w Work, attempts int) {
	if _, it := m.find(w.Consumer, w.ID); it != nil || !w.Deleting || attempts == 0 {
		m.Want(w)
		return
	}
	l, it := m.add(w)
	it.attempts, it.ahead = attempts, true
	l.ahead++
	l.wait(it, now)
	m.reschedule(l)
}

// add makes an item in its lane, in no queue yet.
func (m *Machine) add(w Work) (*lane, *item) {
	l := m.lane(w)
	it := &item{work: w, index: -1}
	l.items[w.ID] = it
	return l, it
}

// change gives an item another content. A work that is to go from now on moves
// to the lane of deletions, unless a message of it is under way: then it moves
// when that has ended, so that the deletion cannot overtake it.
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

// Acknowledge takes the generation that a status of the agent named. A
// deletion is not acknowledged by it; see Forget.
func (m *Machine) Acknowledge(consumer, id string, generation int64) {
	l, it := m.find(consumer, id)
	if it == nil || it.settled || it.work.Deleting || generation < it.work.Generation {
		return
	}
	l.drop(it)
	m.reschedule(l)
}

// Forget drops a work that no longer is wanted: its document is removed, or
// another server took its acknowledgement. w is what is known to be over; what
// supersedes it stays.
func (m *Machine) Forget(w Work) {
	l, it := m.find(w.Consumer, w.ID)
	if it == nil || it.settled || it.work.supersedes(w) {
		return
	}
	l.drop(it)
	m.reschedule(l)
}

// IsCurrent says whether a Send may be published as the given work, which the
// store may have at a later generation than the Send. It is to be asked right
// before the message leaves: a Send is stale when its work has changed, or is
// acknowledged or deleted, or when the lane was dropped since Next. A stale one
// is not published, and ends as NotSent.
func (m *Machine) IsCurrent(send Send, published Work) bool {
	_, it := m.find(send.Consumer, send.ID)
	return it != nil && it.inflight && !it.settled && it.token == send.token && !it.work.supersedes(published)
}

// Resend takes a work that the agent has just said it does not have as wanted.
// It goes at once, even if it was sent or acknowledged before.
func (m *Machine) Resend(w Work) {
	l, it := m.find(w.Consumer, w.ID)
	switch {
	case it == nil:
		l, it = m.add(w)
	case it.settled:
		l.reopen(it, w)
	case w.supersedes(it.work):
		l, it = m.change(l, it, w)
	}
	it.attempts = 0
	l.queue(it)
	m.reschedule(l)
}

// Received takes a generation that the agent has said it holds. That is no
// acknowledgement, its status is still to come, so the work is kept and its
// next repetition put off.
func (m *Machine) Received(now time.Time, consumer, id string, generation int64) {
	l, it := m.find(consumer, id)
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
func (m *Machine) RecordContact(consumer string) {
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

// Connect says that publishing works again. What was sent and not
// acknowledged may be lost, so it is sent again: at once, or, deletions, as
// soon as their turn comes.
func (m *Machine) Connect() {
	m.connected = true
	for _, key := range slices.SortedFunc(maps.Keys(m.lanes), compareLanes) {
		l := m.lanes[key]
		l.silent, l.contacted = 0, false
		l.next = time.Time{}
		for _, it := range l.waiting.items() {
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
	return cmp.Or(strings.Compare(a.consumer, b.consumer), cmp.Compare(a.class, b.class))
}

// Disconnect says that nothing can be published.
func (m *Machine) Disconnect() { m.connected = false }

// Sent reports the end of a Send: what was published, which may be later than
// what was ordered, and how that ended. It settles that Send alone: one that
// comes after its lane was dropped, and made anew, changes nothing.
func (m *Machine) Sent(now time.Time, send Send, published Work, outcome Outcome) {
	l, it := m.find(send.Consumer, send.ID)
	if it == nil || !it.inflight || it.token != send.token {
		return
	}
	it.inflight = false
	if it.settled { // acknowledged or forgotten before the carrier's answer came
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
		if !it.ahead { // published as a deletion, ordered as something else
			it.ahead = true
			l.ahead++
		}
		l.wait(it, now.Add(m.retryPause(l, max(it.attempts, 1))))
	}
	m.reschedule(l)
}

// Next returns at most limit works to publish now. It returns none while not
// connected.
func (m *Machine) Next(now time.Time, limit int) []Send {
	if !m.connected {
		return nil
	}
	m.repeat(now)
	var sends []Send
	for len(sends) < limit && len(m.ready[changes])+len(m.ready[deletions]) > 0 {
		if len(m.ready[m.turn]) == 0 {
			m.turn = 1 - m.turn
		}
		l := m.ready[m.turn][0]
		m.ready[m.turn] = m.ready[m.turn][1:]
		m.turn = 1 - m.turn
		l.listed = false
		for n := 0; n < m.cfg.Burst && len(sends) < limit; n++ {
			it := l.take(m.cfg.Window)
			if it == nil {
				break
			}
			it.attempts++
			m.token++
			it.inflight, it.resend, it.token = true, false, m.token
			sends = append(sends, Send{Work: it.work, Attempt: it.attempts, token: m.token})
		}
		m.reschedule(l)
	}
	return sends
}

// repeat queues what is due to be sent again.
func (m *Machine) repeat(now time.Time) {
	for len(m.timers[changes]) > 0 && !m.timers[changes][0].at.After(now) {
		l := m.timers[changes][0]
		l.repeat(now, &m.cfg, m.cfg.Retries)
		m.reschedule(l)
	}
	for len(m.timers[deletions]) > 0 && !m.timers[deletions][0].at.After(now) {
		left := m.pace.available(now)
		if left == 0 {
			return
		}
		l := m.timers[deletions][0]
		m.pace.tokens -= float64(l.repeat(now, &m.cfg, left))
		m.reschedule(l)
	}
}

// Wake returns when Next is to be called even if nothing happens until then.
func (m *Machine) Wake() (at time.Time, ok bool) {
	if !m.connected {
		return time.Time{}, false
	}
	if t := m.timers[changes]; len(t) > 0 {
		at, ok = t[0].at, true
	}
	if t := m.timers[deletions]; len(t) > 0 {
		due := t[0].at
		if next := m.pace.next(); due.Before(next) {
			due = next
		}
		if !ok || due.Before(at) {
			at, ok = due, true
		}
	}
	return at, ok
}

// Pending counts what is held: works in all, and those of them that were sent.
func (m *Machine) Pending() (works, ahead int) {
	for _, l := range m.lanes {
		works += len(l.items) - l.settled
		ahead += l.ahead
	}
	return works, ahead
}

// Lane counts the same for one consumer.
func (m *Machine) Lane(consumer string) (works, ahead int) {
	for _, c := range []class{changes, deletions} {
		if l := m.lanes[laneKey{consumer, c}]; l != nil {
			works, ahead = works+len(l.items)-l.settled, ahead+l.ahead
		}
	}
	return works, ahead
}

// Drop drops all that is wanted of a consumer, for a Machine that is no longer
// in charge of it, or is about to begin anew.
func (m *Machine) Drop(consumer string) {
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

// DropIf drops all that is wanted of some consumers.
func (m *Machine) DropIf(drop func(consumer string) bool) {
	for key := range m.lanes {
		if drop(key.consumer) {
			m.Drop(key.consumer)
		}
	}
}

// Hasten makes all that waits to be repeated to a consumer due: its agent lacks
// works. The lane's pace is kept.
func (m *Machine) Hasten(now time.Time, consumer string) {
	for _, c := range []class{changes, deletions} {
		l := m.lanes[laneKey{consumer, c}]
		if l == nil {
			continue
		}
		for _, it := range l.waiting.items() {
			if it.due.After(now) {
				l.wait(it, now)
			}
		}
		if limit := now.Add(m.cfg.Base); l.next.After(limit) {
			l.next = limit
		}
		m.reschedule(l)
	}
}

func (m *Machine) lane(w Work) *lane {
	key := laneKey{w.Consumer, classOf(w)}
	l := m.lanes[key]
	if l == nil {
		l = &lane{laneKey: key, items: map[string]*item{}, index: -1}
		m.lanes[key] = l
	}
	return l
}

func (m *Machine) find(consumer, id string) (*lane, *item) {
	for _, c := range []class{changes, deletions} {
		if l := m.lanes[laneKey{consumer, c}]; l != nil && l.items[id] != nil {
			return l, l.items[id]
		}
	}
	return nil, nil
}

// reschedule puts a lane where it belongs after a change: among the ready ones,
// among the timers, or, when nothing is left of it, nowhere.
func (m *Machine) reschedule(l *lane) {
	if l.sendable(m.cfg.Window) && !l.listed {
		l.listed = true
		m.ready[l.class] = append(m.ready[l.class], l)
	}
	timers := &m.timers[l.class]
	due, waits := l.due()
	switch {
	case !waits && l.index >= 0:
		heap.Remove(timers, l.index)
	case waits && l.index < 0:
		l.at = due
		heap.Push(timers, l)
	case waits && !l.at.Equal(due):
		l.at = due
		heap.Fix(timers, l.index)
	}
	if len(l.items) == 0 && !l.listed {
		delete(m.lanes, l.laneKey)
	}
}

// retryPause returns the time between an attempt and the next.
func (m *Machine) retryPause(l *lane, attempts int) time.Duration {
	d := backoff(m.cfg.Base, m.cfg.maxPause(l.class), attempts)
	return time.Duration(float64(d) * (0.75 + m.cfg.Jitter()/2))
}

// maxPause returns the longest pause between two attempts.
func (c *Config) maxPause(of class) time.Duration {
	if of == deletions {
		return c.DeleteMax
	}
	return c.Max
}

func backoff(base, most time.Duration, attempts int) time.Duration {
	d := base
	for range attempts - 1 {
		if d *= 2; d >= most {
			return most
		}
	}
	return min(d, most)
}
