package sentinel

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"atoll.dev/bus"
	"atoll.dev/store"
)

// loop owns the table. Until ctx ends, it handles rounds of the feed, functions of the mailbox and due timers.
// Each goroutine that it starts is counted in parts.
func (s *Sentinel) loop(ctx context.Context, parts *sync.WaitGroup) {
	s.start = func(f func(context.Context)) { parts.Go(func() { f(ctx) }) }
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.sub.Woken():
			s.takeRounds()
		case <-s.mail.woken:
			for _, f := range s.mail.take() {
				f()
			}
		case <-timer.C:
		}
		timer.Reset(s.decideDue(ctx, time.Now()))
	}
}

// takeRounds applies the rounds that the feed has brought. When the subscription has failed,
// takeRounds subscribes again and reads all held slots again.
func (s *Sentinel) takeRounds() {
	begun := time.Now()
	rounds, err := s.sub.Take()
	if err != nil {
		// The loop was too slow for the feed, or the database was restored from a backup.
		s.log.Warn("the sentinel reads its resources again", "reason", err)
		s.sub.Close()
		s.sub = s.opts.Feed.Subscribe(s.isRelevant)
		s.marks = nil
		clear(s.removed) // lists that begin now lack these documents; a restored database has other versions
		s.dropSlots(func(int) bool { return true })
		var again []int
		for i := range s.slots {
			if s.slots[i].epoch != 0 {
				again = append(again, i)
			}
		}
		s.loadSlots(again)
		return
	}
	for _, round := range rounds {
		s.round = round.Number
		for _, c := range round.Changes {
			s.applyChange(c, begun)
		}
		if round.Cursor != "" {
			s.addCheckpoint(checkpoint{round.Number, round.Cursor})
		}
	}
	now := time.Now()
	for _, d := range s.duties {
		s.metrics.polls.WithLabelValues(d.labels...).Observe(now.Sub(begun).Seconds())
		s.metrics.lastPoll.WithLabelValues(d.labels...).Set(float64(now.UnixMilli()) / 1000)
	}
}

// addCheckpoint appends a checkpoint. When an event stays unsent for long and the checkpoints become many, it drops
// every other one of the older half; saved cursors then lie a little earlier.
func (s *Sentinel) addCheckpoint(c checkpoint) {
	if len(s.table.owing) == 0 {
		s.marks = s.marks[:0]
	}
	s.marks = append(s.marks, c)
	if len(s.marks) > maxMarks {
		kept := s.marks[:0]
		for i, m := range s.marks {
			if i > maxMarks/2 || i%2 == 0 {
				kept = append(kept, m)
			}
		}
		s.marks = kept
	}
}

// cursors returns the new cursors of slots that may advance. No event for a change before such a cursor is unsent.
func (s *Sentinel) cursors() saving {
	var unsent [slots]uint64
	for r := range s.table.owing {
		if since := r.unsentSince(); unsent[r.slot] == 0 || since < unsent[r.slot] {
			unsent[r.slot] = since
		}
	}
	save := saving{}
	for i := range s.slots {
		if !s.slots[i].ready {
			continue
		}
		if base := s.slots[i].base; len(s.marks) == 0 && unsent[i] == 0 && base != s.slots[i].cursor {
			save[i] = base
		}
		for m := len(s.marks) - 1; m >= 0; m-- {
			if unsent[i] == 0 || s.marks[m].round < unsent[i] {
				if s.marks[m].cursor != s.slots[i].cursor {
					save[i] = s.marks[m].cursor
				}
				break
			}
		}
	}
	return save
}

// applyChange applies a change of the feed: it handles a request, or updates the resource in the table.
func (s *Sentinel) applyChange(c *store.Change, now time.Time) {
	if c.Kind == s.opts.Requests {
		if !c.Removed {
			s.takeRequest(c.Spec, s.round, now)
		}
		return
	}
	number := slotOf(c.ID)
	k, d := key{c.Kind, c.ID}, s.duties[c.Kind]
	s.requeueRelated(k, c, now)
	if s.slots[number].epoch == 0 {
		return
	}
	r := s.table.all[k]
	if c.Removed || !s.matchesSelector(d, &c.Document) {
		if !s.slots[number].ready {
			s.removed[k] = c.Version
		}
		if r != nil && r.Version < c.Version {
			s.table.drop(r)
		}
		return
	}
	if r == nil {
		r = s.table.get(k, number)
	} else if c.Version <= r.Version {
		return
	}
	s.table.own(r, d.owner(&c.Document))
	change := Change{c.Version, c.Generation, markOf(&c.Document), c.DeletedAt != nil, s.round}
	next := s.policy.ApplyChange(r.State, change, now)
	s.table.release(r)
	if next.Due != 0 && next.Due <= instantOf(now.Add(s.policy.Debounce)) {
		s.table.hold(r, &c.Document)
	}
	s.table.put(r, next)
}

// requeueRelated makes resources due that may wait for a changed document: the resources below it, or, when the
// document was removed, its owner. It leaves reconciled resources alone, and marks no event as unsent, because a
// timer makes these resources due as well.
func (s *Sentinel) requeueRelated(k key, c *store.Change, now time.Time) {
	if !c.Removed {
		for r := range s.table.owned[k] {
			s.table.put(r, s.policy.ApplyRecheck(r.State, Urgent, now))
		}
		return
	}
	if r := s.table.all[s.duties[c.Kind].owner(&c.Document)]; r != nil {
		s.table.put(r, s.policy.ApplyRecheck(r.State, Urgent, now))
	}
}

// owner returns the key of the resource that owns a document; the zero key if there is none.
func (d *duty) owner(doc *store.Document) key {
	if d.kind.Parent == "" || doc.Scope == "" {
		return key{}
	}
	return key{d.kind.Parent, doc.Scope}
}

// matchesSelector reports whether a document has the labels of its configuration's
// selector.
func (s *Sentinel) matchesSelector(d *duty, doc *store.Document) bool {
	if len(d.rules.selector) == 0 {
		return true
	}
	f, err := d.rules.Facts(doc.Wire)
	return err == nil && d.rules.matches(f)
}

// request is the spec of a document that requests events.
type request struct {
	Kind store.Kind `json:"kind"`
	ID   string     `json:"id"`
}

func readRequest(spec []byte) (req request, err error) { return req, json.Unmarshal(spec, &req) }

// takeRequest handles a request of the feed. Slots whose resources are still being read
// get it after the reading.
func (s *Sentinel) takeRequest(spec []byte, round uint64, now time.Time) {
	req, err := readRequest(spec)
	if err != nil {
		s.log.Warn("the sentinel cannot decode a request for events; it is ignored", "error", err)
		return
	}
	for i := range s.slots {
		if s.slots[i].epoch != 0 && !s.slots[i].ready {
			s.waiting = append(s.waiting, req)
			break
		}
	}
	s.applyRequest(req, func(int) bool { return true }, round, now)
}

// applyRequest makes the requested resources due that are in slots for which in is true.
func (s *Sentinel) applyRequest(req request, in func(slot int) bool, round uint64, now time.Time) {
	if req.ID != "" {
		for kind := range s.duties {
			if r := s.table.all[key{kind, req.ID}]; r != nil && in(int(r.slot)) &&
				(req.Kind == "" || req.Kind == kind) {
				s.table.put(r, s.policy.ApplyRequest(r.State, Urgent, round, now))
			}
		}
		return
	}
	for _, r := range s.table.all {
		if (req.Kind == "" || req.Kind == r.kind) && in(int(r.slot)) {
			s.table.put(r, s.policy.ApplyRequest(r.State, Routine, round, now))
		}
	}
}

// handleHello handles the hello of an adapter that has just connected. The adapter has received none of the earlier
// events, so that pending resources become due again.
func (s *Sentinel) handleHello(_ context.Context, m bus.Message) {
	m.Ack()
	topic, ok := strings.CutPrefix(m.Topic, bus.HelloTopic(""))
	if !ok || m.Event.Type != bus.HelloType {
		return
	}
	var hello bus.Hello // the zero value wants the events of all slots
	if err := json.Unmarshal(m.Event.Data, &hello); err != nil {
		s.log.Warn("the sentinel cannot decode an adapter's hello; it sends events of all slots", "adapter",
			m.Event.Source, "error", err)
		hello = bus.Hello{}
	}
	s.log.Info("an adapter connected", "adapter", m.Event.Source, "topic", topic, "slots", len(hello.Slots), "of",
		hello.Of)
	wants := func(d *duty, id string) bool { return d.hello == topic && hello.Wants(id) }
	s.mail.post(func() { s.requeuePending(wants) })
}

// trackConnection runs while the connection to the broker stands, and ends with ctx. A new connection makes
// all pending resources due, because the broker does not store events.
func (s *Sentinel) trackConnection(ctx context.Context) {
	s.mail.post(func() {
		s.up = true
		s.requeuePending(func(*duty, string) bool { return true })
	})
	<-ctx.Done()
	s.mail.post(func() { s.up = false })
}

// requeuePending makes due, of the resources for which selects is true, those with an unacknowledged event,
// those that are not reconciled, and those with a recent request.
func (s *Sentinel) requeuePending(selects func(d *duty, id string) bool) {
	now := time.Now()
	for _, r := range s.table.all {
		if !selects(s.duties[r.kind], r.id) {
			continue
		}
		if next := s.policy.ApplyConnect(r.State, now); next != r.State {
			s.table.put(r, next)
		}
	}
}
