package bus

import "time"

const (
	// reservedIDs is how many packet ids may belong to expired publishes. An id is
	// not used again while its acknowledgement can still come; of 65,535 ids a
	// quarter may be lost in this way before the connection is replaced.
	reservedIDs = 1 << 14
	// silentLimits is for how many limits a broker may acknowledge nothing before
	// the connection is replaced.
	silentLimits = 3
)

// inflight holds the publishes of one connection that the broker has not
// acknowledged. A publish expires when its acknowledgement is overdue: a broker
// may drop a message, by a quota for example, and acknowledge only the next one.
// It knows the time only as an argument, and its owner has a lock.
type inflight struct {
	limit time.Duration

	nextID  uint16
	number  uint64 // of the last publish
	sent    map[uint16]*publish
	expired int // those of sent that have expired

	acked      uint64    // the highest number that was acknowledged
	ackedAt    time.Time // the last acknowledgement
	unanswered time.Time // when the oldest publish was written that expired since then; zero: none
}

type publish struct {
	number  uint64
	written time.Time   // zero: not seen on the socket yet
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

// acknowledge takes a PUBACK. It returns nil for a publish that has expired, or
// that nobody knows.
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

// expire returns the callbacks of the publishes whose acknowledgement is
// overdue; written of all publishes are on the socket. A broker acknowledges in
// the order in which it received, so a publish that waits behind others on a
// slow connection is not overdue while acknowledgements come.
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

// useless says that the connection is to be replaced: too many ids are lost, or
// the broker has acknowledged nothing for long.
func (f *inflight) useless(now time.Time) bool {
	return f.expired >= reservedIDs || !f.unanswered.IsZero() && now.Sub(f.unanswered) >= silentLimits*f.limit
}

// fail returns the callbacks of all publishes that have not expired, and forgets
// all.
func (f *inflight) fail() (open []func(error)) {
	for _, p := range f.sent {
		if p.done != nil {
			open = append(open, p.done)
		}
	}
	clear(f.sent)
	return open
}
