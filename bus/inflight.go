package bus

import "time"

const (
	// reservedIDs bounds the packet ids of expired publishes. An id is not used again
	// while its acknowledgement can still come. The connection is replaced when a quarter
	// of the 65,535 ids is blocked in this way.
	reservedIDs = 1 << 14
	// silentLimits is the number of acknowledgement limits after which the connection is
	// replaced when the broker acknowledges nothing.
	silentLimits = 3
)

// inflight holds the publishes of one connection that the broker has not
// acknowledged. A publish expires when its acknowledgement is overdue: a broker
// may drop a message, by a quota for example, and acknowledge only the next one.
// It reads no clock. It is not safe for concurrent use: the connection's lock guards it.
type inflight struct {
	limit time.Duration

	nextID  uint16
	number  uint64 // of the last publish
	sent    map[uint16]*publish
	expired int // number of expired publishes in sent

	acked      uint64    // the highest acknowledged number
	ackedAt    time.Time // the last acknowledgement
	unanswered time.Time // when the oldest publish was written that has expired since ackedAt; zero: none
}

type publish struct {
	number  uint64
	written time.Time   // zero: expire has not seen it on the socket yet
	done    func(error) // nil: it has expired
}

func newInflight(limit time.Duration) *inflight {
	return &inflight{limit: limit, sent: map[uint16]*publish{}}
}

// add reserves a packet id. There must be a free one.
func (f *inflight) add(done func(error)) (id uint16) {
	for {
		if f.nextID++; f.nextID != 0 && f.sent[f.nextID] == nil {
			break
		}
	}
	f.number++
	f.sent[f.nextID] = &publish{number: f.number, done: done}
	return f.nextID
}

// remove drops a publish that was not written.
func (f *inflight) remove(id uint16) { delete(f.sent, id) }

// acknowledge handles a PUBACK and returns the publish's callback. It returns nil for an
// expired publish and for an unknown id.
func (f *inflight) acknowledge(id uint16, now time.Time) func(error) {
	p := f.sent[id]
	if p == nil {
		return nil
	}
	delete(f.sent, id)
	f.acked, f.ackedAt, f.unanswered = max(f.acked, p.number), now, time.Time{}
	if p.done == nil {
		f.expired--
	}
	return p.done
}

// expire returns the callbacks of the publishes whose acknowledgement is overdue.
// written is the number of publishes that are on the socket. A broker acknowledges in
// the order of receipt, so a publish behind others on a slow connection is not overdue
// while acknowledgements arrive.
func (f *inflight) expire(now time.Time, written uint64) (overdue []func(error)) {
	quiet := now.Sub(f.ackedAt) >= f.limit
	for _, p := range f.sent {
		switch {
		case p.done == nil || p.number > written:
		case p.written.IsZero():
			p.written = now
		case now.Sub(p.written) >= f.limit && (quiet || p.number < f.acked):
			overdue = append(overdue, p.done)
			p.done = nil
			f.expired++
			if f.acked < p.number && (f.unanswered.IsZero() || p.written.Before(f.unanswered)) {
				f.unanswered = p.written
			}
		}
	}
	return overdue
}

// isStalled reports whether the connection must be replaced: expired publishes block too
// many ids, or the broker has acknowledged nothing for silentLimits times the limit.
func (f *inflight) isStalled(now time.Time) bool {
	return f.expired >= reservedIDs || !f.unanswered.IsZero() && now.Sub(f.unanswered) >= silentLimits*f.limit
}

// removeAll removes all publishes and returns the callbacks of those that have not
// expired.
func (f *inflight) removeAll() (open []func(error)) {
	for _, p := range f.sent {
		if p.done != nil {
			open = append(open, p.done)
		}
	}
	clear(f.sent)
	return open
}
