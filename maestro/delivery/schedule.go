package delivery

import (
	"container/heap"
	"time"

	"atoll.dev/api/work"
)

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

// repeat queues the items whose repetition is due.
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

// NextWake returns the time at which the caller must call Next even without an event; false: no such time.
func (m *Machine) NextWake() (at time.Time, ok bool) {
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

// MakeDue makes all waiting works of a consumer due, since its agent lacks works. The
// lane's pace still limits the repetitions.
func (m *Machine) MakeDue(now time.Time, consumer work.Consumer) {
	for _, c := range []class{changes, deletions} {
		l := m.lanes[laneKey{consumer, c}]
		if l == nil {
			continue
		}
		for _, it := range sortItems(l.waiting) {
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

// reschedule updates a lane's place after a change: in ready, in timers or both, and it
// removes an empty lane.
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

func backoff(base, most time.Duration, attempts int) time.Duration {
	d := base
	for range attempts - 1 {
		if d *= 2; d >= most {
			return most
		}
	}
	return min(d, most)
}
