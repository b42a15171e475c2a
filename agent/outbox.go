package agent

import (
	"time"

	"atoll.dev/api/work"
)

// outgoing is what is to be said about a work. A status is taken from the
// work when it is sent, so that the latest wins.
type outgoing struct {
	deleted  *spec // the final acknowledgement: the work that is gone
	response bool  // the server asked
}

// statusEvent is a status as it goes on the bus.
type statusEvent struct {
	id       workID
	spec     *spec
	status   work.Status
	hash     string
	seq      int64
	version  int64
	applied  time.Time
	response bool
}

// outbox keeps, per work, the last thing that is to be said, until the broker
// has taken it. One message per work is under way at a time.
type outbox struct {
	window         int
	online         bool
	inFlight       int
	pending        map[workID]*outItem
	queue          []workID // in the order in which they became pending
	retryScheduled bool     // a timer is set
}

type outItem struct {
	out    outgoing
	seq    int64 // of the message under way, 0 for none
	queued bool
	dirty  bool // changed since it was sent
}

const resendAfter = time.Second

func newOutbox(window int) outbox {
	return outbox{window: max(window, 1), pending: map[workID]*outItem{}}
}

// put makes out the thing to say about the work.
func (o *outbox) put(id workID, out outgoing) {
	it := o.pending[id]
	if it == nil {
		it = &outItem{}
		o.pending[id] = it
	}
	if out.deleted == nil && it.out.deleted == nil {
		out.response = out.response || it.out.response
	}
	it.out = out
	if it.seq != 0 {
		it.dirty = true
		return
	}
	o.enqueue(id, it)
}

func (o *outbox) enqueue(id workID, it *outItem) {
	if !it.queued {
		it.queued = true
		o.queue = append(o.queue, id)
	}
}

func (o *outbox) markOffline() { o.online = false }

func (o *outbox) enqueueAll() {
	o.retryScheduled = false
	for id, it := range o.pending {
		if it.seq == 0 {
			o.enqueue(id, it)
		}
	}
}

// connected asks the server for what differs and sends what it has not
// confirmed.
func (c *core) handleConnected() {
	c.out.online = true
	c.out.enqueueAll()
	c.resync.start(c)
}

// pump sends as much as the window allows.
func (c *core) sendQueued() {
	o := &c.out
	if len(o.queue) > 0 {
		c.reserveSequence()
	}
	for o.online && o.inFlight < o.window && len(o.queue) > 0 {
		id := o.queue[0]
		o.queue = o.queue[1:]
		it := o.pending[id]
		if it == nil {
			continue
		}
		it.queued = false
		ev := c.statusEventOf(id, it.out)
		if ev == nil {
			delete(o.pending, id)
			continue
		}
		seq, ok := c.seq.next(c.wallTime())
		if !ok { // evReserved comes
			o.enqueue(id, it)
			break
		}
		ev.seq = seq
		it.seq, it.dirty = seq, false
		o.inFlight++
		c.emit(effSend{ev})
	}
}

// reserve keeps sequence ids reserved ahead.
func (c *core) reserveSequence() {
	if ceiling, due := c.seq.reserve(c.wallTime()); due {
		c.emit(effPersist{rec: record{Ceiling: ceiling}, then: evCeilingDurable{ceiling}})
	}
}

// eventOf renders what is to be said now, nil when there is nothing.
func (c *core) statusEventOf(id workID, out outgoing) *statusEvent {
	if s := out.deleted; s != nil {
		st := deletedStatus(c.cfg.consumer, s.Generation, c.now)
		return &statusEvent{id: id, spec: s, status: work.Status{Conditions: st.Conditions}, hash: statusHash(st),
			version: s.Generation}
	}
	w := c.works[id]
	if w == nil || w.status == nil {
		return nil
	}
	s := w.spec
	if s == nil {
		s = w.nextSpec
	}
	if s == nil {
		return nil
	}
	return &statusEvent{
		id: id, spec: s, hash: w.status.Hash, version: w.status.Generation, applied: w.appliedAt, response: out.response,
		status: work.Status{Conditions: w.status.Status.Conditions,
			ResourceStatus: w.status.Status.ResourceStatus.Manifests},
	}
}

// sent takes the broker's answer, or its absence.
func (c *core) handleSent(ev evSent) {
	o := &c.out
	o.inFlight--
	it := o.pending[ev.id]
	if it == nil || it.seq != ev.seq {
		return
	}
	it.seq = 0
	if !ev.accepted {
		// Sent again on the next connection, or soon on this one.
		if !o.retryScheduled {
			o.retryScheduled = true
			c.wakeAt(c.now.Add(resendAfter), retryTimer)
		}
		return
	}
	if it.dirty {
		o.enqueue(ev.id, it)
	} else {
		delete(o.pending, ev.id)
	}
	if w := c.works[ev.id]; w != nil && it.out.deleted == nil && ev.hash != "" && w.acked != ev.hash {
		w.acked = ev.hash
		c.emit(effPersist{rec: record{ID: w.id, Acked: ev.hash}})
	}
}

// statusResync answers the server's question: everything when it knows
// nothing, else those of its list that differ.
func (c *core) answerStatusResync(hashes []work.StatusHash) {
	c.resync.handleQuestion(c)
	if len(hashes) == 0 {
		for id, w := range c.works {
			if w.status != nil {
				c.out.put(id, outgoing{response: true})
			}
		}
		return
	}
	for _, h := range hashes {
		if w := c.works[workID(h.ID)]; w != nil && w.status != nil && w.status.Hash != h.Hash {
			c.out.put(workID(h.ID), outgoing{response: true})
		}
	}
}
