package delivery

import (
	"container/heap"
	"maps"
	"slices"
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

// A Send is an order to publish a work. Exactly one Sent must follow it.
type Send struct {
	Work
	Attempt int // from 1; above 1 the agent may have it, and only its status was lost
}

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
	if c.Base <= 0 {
		c.Base = time.Second
	}
	if c.Max <= 0 {
		c.Max = 60 * time.Second
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
	lanes     map[string]*lane
	ready     []*lane  // lanes that may send now, in turn
	timers    laneHeap // lanes that wait to repeat, by time
}

// New returns a Machine that holds nothing and is not connected.
func New(cfg Config) *Machine {
	return &Machine{cfg: cfg.withDefaults(), lanes: map[string]*lane{}}
}

// Want takes a work that its agent has not acknowledged. A later generation
// replaces an earlier one that was not sent yet. It reports whether that was
// news, so that the work will be sent.
func (m *Machine) Want(w Work) bool {
	l := m.lane(w.Consumer)
	it, known := l.items[w.ID]
	switch {
	case !known:
		it = &item{work: w, index: -1}
		l.items[w.ID] = it
	case !w.supersedes(it.work):
		return false
	default:
		it.work = w
		it.attempts = 0
	}
	l.queue(it)
	m.settle(l)
	return true
}

// Acknowledge takes the generation that a status of the agent named. A
// deletion is not acknowledged by it; see Forget.
func (m *Machine) Acknowledge(consumer, id string, generation int64) {
	l, it := m.find(consumer, id)
	if it == nil || it.work.Deleting || generation < it.work.Generation {
		return
	}
	l.drop(it)
	m.settle(l)
}

// Forget drops a work that no longer is wanted: gone from the store, or
// acknowledged to another server.
func (m *Machine) Forget(consumer, id string) {
	if l, it := m.find(consumer, id); it != nil {
		l.drop(it)
		m.settle(l)
	}
}

// Resend takes a work that the agent has just said it does not have as wanted.
// It goes at once, even if it was sent or acknowledged before.
func (m *Machine) Resend(w Work) {
	l := m.lane(w.Consumer)
	it, known := l.items[w.ID]
	if !known {
		it = &item{work: w, index: -1}
		l.items[w.ID] = it
	} else if w.supersedes(it.work) {
		it.work = w
	}
	it.attempts = 0
	l.queue(it)
	m.settle(l)
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
	l.wait(it, now.Add(m.pause(it.attempts)))
	m.settle(l)
}

// Heard takes any sign of life of a consumer's agent.
func (m *Machine) Heard(consumer string) {
	l := m.lanes[consumer]
	if l == nil {
		return
	}
	l.heard = true
	if l.silent > 0 {
		l.silent = 0
		l.next = l.repeated.Add(m.cfg.Base)
		m.settle(l)
	}
}

// Connect says that publishing works again. What was sent and not
// acknowledged may be lost, so it is sent again.
func (m *Machine) Connect() {
	m.connected = true
	for _, name := range slices.Sorted(maps.Keys(m.lanes)) {
		l := m.lanes[name]
		l.silent, l.heard = 0, false
		l.next = time.Time{}
		for _, it := range l.waiting.items() {
			it.attempts = 0
			l.queue(it)
		}
		m.settle(l)
	}
}

// Disconnect says that nothing can be published.
func (m *Machine) Disconnect() { m.connected = false }

// Sent reports the end of a Send: what was in fact published, which may be
// later than what was ordered, or the error.
func (m *Machine) Sent(now time.Time, w Work, err error) {
	l, it := m.find(w.Consumer, w.ID)
	if it == nil || !it.inflight {
		return // acknowledged, or forgotten, before the broker's answer came
	}
	it.inflight = false
	switch {
	case err != nil:
		l.wait(it, now.Add(m.pause(1)))
	case it.again || it.work.supersedes(w):
		l.queue(it)
	default:
		if w.supersedes(it.work) {
			it.work = w
		}
		l.wait(it, now.Add(m.pause(it.attempts)))
	}
	m.settle(l)
}

// Next returns at most limit works to publish now. It returns none while not
// connected.
func (m *Machine) Next(now time.Time, limit int) []Send {
	if !m.connected {
		return nil
	}
	for len(m.timers) > 0 && !m.timers[0].at.After(now) {
		l := m.timers[0]
		l.repeat(now, &m.cfg)
		m.settle(l)
	}
	var sends []Send
	for len(m.ready) > 0 && len(sends) < limit {
		l := m.ready[0]
		m.ready = m.ready[1:]
		l.listed = false
		for n := 0; n < m.cfg.Burst && len(sends) < limit; n++ {
			it := l.take(m.cfg.Window)
			if it == nil {
				break
			}
			it.attempts++
			it.inflight, it.again = true, false
			sends = append(sends, Send{Work: it.work, Attempt: it.attempts})
		}
		m.settle(l)
	}
	return sends
}

// Wake returns when Next is to be called even if nothing happens until then.
func (m *Machine) Wake() (at time.Time, ok bool) {
	if !m.connected || len(m.timers) == 0 {
		return time.Time{}, false
	}
	return m.timers[0].at, true
}

// Pending counts what is held: works in all, and those of them that were sent.
func (m *Machine) Pending() (works, ahead int) {
	for _, l := range m.lanes {
		works += len(l.items)
		ahead += l.ahead
	}
	return works, ahead
}

// Lane counts the same for one consumer.
func (m *Machine) Lane(consumer string) (works, ahead int) {
	if l := m.lanes[consumer]; l != nil {
		return len(l.items), l.ahead
	}
	return 0, 0
}

// Drop drops all that is wanted of a consumer, for a Machine that is no longer
// in charge of it, or is about to begin anew.
func (m *Machine) Drop(consumer string) {
	l := m.lanes[consumer]
	if l == nil {
		return
	}
	if l.index >= 0 {
		heap.Remove(&m.timers, l.index)
	}
	if l.listed {
		m.ready = slices.DeleteFunc(m.ready, func(r *lane) bool { return r == l })
	}
	delete(m.lanes, consumer)
}

// Reset drops everything, for a Machine that is no longer in charge.
func (m *Machine) Reset() {
	m.lanes, m.ready, m.timers = map[string]*lane{}, nil, nil
}

func (m *Machine) lane(consumer string) *lane {
	l := m.lanes[consumer]
	if l == nil {
		l = &lane{name: consumer, items: map[string]*item{}, index: -1}
		m.lanes[consumer] = l
	}
	return l
}

func (m *Machine) find(consumer, id string) (*lane, *item) {
	l := m.lanes[consumer]
	if l == nil {
		return nil, nil
	}
	return l, l.items[id]
}

// settle puts a lane where it belongs after a change: among the ready ones,
// among the timers, or, when nothing is left of it, nowhere.
func (m *Machine) settle(l *lane) {
	if l.sendable(m.cfg.Window) && !l.listed {
		l.listed = true
		m.ready = append(m.ready, l)
	}
	due, waits := l.due()
	switch {
	case !waits && l.index >= 0:
		heap.Remove(&m.timers, l.index)
	case waits && l.index < 0:
		l.at = due
		heap.Push(&m.timers, l)
	case waits && !l.at.Equal(due):
		l.at = due
		heap.Fix(&m.timers, l.index)
	}
	if len(l.items) == 0 && !l.listed {
		delete(m.lanes, l.name)
	}
}

// pause is the time between an attempt and the next.
func (m *Machine) pause(attempts int) time.Duration {
	d := backoff(m.cfg.Base, m.cfg.Max, attempts)
	return time.Duration(float64(d) * (0.75 + m.cfg.Jitter()/2))
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
