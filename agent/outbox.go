package agent

import (
	"time"

	"atoll.dev/api/work"
)

// outgoing is a pending message about a work. The status itself is read from the
// work at the time of sending, so that the latest one is sent.
type outgoing struct {
	deleted  *spec // set for the acknowledgement of a deletion
	response bool  // the message answers a status resync
}

// statusEvent is a status event for the bus.
type statusEvent struct {
	id       work.ID
	spec     *spec
	status   work.Status
	hash     string
	seq      int64
	version  int64
	applied  time.Time
	response bool
}

// outbox keeps the pending message of each work until the broker accepts it. At
// most one message of a work is in flight.
type outbox struct {
	window         int
	online         bool
	inFlight       int
	pending        map[work.ID]*outItem
	queue          []work.ID // works with a message to send, oldest first
	retryScheduled bool      // the retry timer runs
}

type outItem struct {
	out    outgoing
	seq    int64 // of the message in flight, 0 for none
	queued bool
	dirty  bool // changed since it was sent
}

const resendAfter = time.Second

func newOutbox(window int) outbox {
	return outbox{window: max(window, 1), pending: map[work.ID]*outItem{}}
}

// put replaces the pending message of the work.
func (o *outbox) put(id work.ID, out outgoing) {
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

func (o *outbox) enqueue(id work.ID, it *outItem) {
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

// handleConnected starts a comparison with the server and sends all pending
// messages.
func (c *core) handleConnected() {
	c.out.online = true
	c.out.enqueueAll()
	c.resync.start(c)
}

// sendQueued sends queued messages up to the window.
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
		if !ok { // evCeilingDurable follows
			o.enqueue(id, it)
			break
		}
		ev.seq = seq
		it.seq, it.dirty = seq, false
		o.inFlight++
		c.emit(effSend{ev})
	}
}

// reserveSequence orders that a ceiling of sequence ids is written to disk, when
// few reserved ids are left.
func (c *core) reserveSequence() {
	if ceiling, due := c.seq.reserve(c.wallTime()); due {
		c.emit(effPersist{rec: record{Ceiling: ceiling}, then: evCeilingDurable{ceiling}})
	}
}

// statusEventOf returns the event of a pending message, nil when there is nothing
// to send.
func (c *core) statusEventOf(id work.ID, out outgoing) *statusEvent {
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

// handleSent handles the result of effSend.
func (c *core) handleSent(ev evSent) {
	o := &c.out
	o.inFlight--
	it := o.pending[ev.id]
	if it == nil || it.seq != ev.seq {
		return
	}
	it.seq = 0
	if !ev.accepted {
		// It is sent again on the next connection, or after resendAfter.
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

// answerStatusResync sends the statuses whose hash differs from the server's list;
// all statuses when the list is empty.
func (c *core) answerStatusResync(hashes []work.StatusHash) {
	c.resync.handleStatusRequest(c)
	if len(hashes) == 0 {
		for id, w := range c.works {
			if w.status != nil {
				c.out.put(id, outgoing{response: true})
			}
		}
		return
	}
	for _, h := range hashes {
		if w := c.works[work.ID(h.ID)]; w != nil && w.status != nil && w.status.Hash != h.Hash {
			c.out.put(work.ID(h.ID), outgoing{response: true})
		}
	}
}
