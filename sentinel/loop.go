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
	s.startGoroutine = func(f func(context.Context)) { parts.Go(func() { f(ctx) }) }
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.subscription.Woken():
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

// takeRounds applies the new rounds of the feed. If the subscription has failed, it subscribes again and reads the
// resources of all held slots again.
func (s *Sentinel) takeRounds() {
	begun := time.Now()
	rounds, err := s.subscription.Take()
	if err != nil {
		// The loop was too slow for the feed, or the database was restored from a backup.
		s.log.Warn("the subscription to the feed failed; the sentinel reads its resources again", "error", err)
		s.subscription.Close()
		s.subscription = s.opts.Feed.Subscribe(s.isRelevant)
		s.checkpoints = nil
		clear(s.removedDuringLoad) // new lists do not have these documents; a restored database has other versions
		s.dropSlots(func(int) bool { return true })
		var held []int
		for i := range s.slots {
			if s.slots[i].epoch != 0 {
				held = append(held, i)
			}
		}
		s.loadSlots(held)
		return
	}
	for _, round := range rounds {
		s.lastRound = round.Number
		for _, c := range round.Changes {
			s.applyChange(c, begun)
		}
		if round.Cursor != "" {
			s.addCheckpoint(checkpoint{round.Number, round.Cursor})
		}
	}
	now := time.Now()
	for _, d := range s.watched {
		s.metrics.polls.WithLabelValues(d.labels...).Observe(now.Sub(begun).Seconds())
		s.metrics.lastPoll.WithLabelValues(d.labels...).Set(float64(now.UnixMilli()) / 1000)
	}
}

// addCheckpoint appends a checkpoint. Above maxCheckpoints, when an event stays unsent for long, it drops every other
// checkpoint of the older half; the saved cursors then lie a little earlier.
func (s *Sentinel) addCheckpoint(c checkpoint) {
	if len(s.table.unsent) == 0 {
		s.checkpoints = s.checkpoints[:0]
	}
	s.checkpoints = append(s.checkpoints, c)
	if len(s.checkpoints) > maxCheckpoints {
		kept := s.checkpoints[:0]
		for i, m := range s.checkpoints {
			if i > maxCheckpoints/2 || i%2 == 0 {
				kept = append(kept, m)
			}
		}
		s.checkpoints = kept
	}
}

// cursors returns the cursors to save: of each slot the latest checkpoint before its first unsent event, unless that is
// saved already.
func (s *Sentinel) cursors() cursorUpdates {
	var unsent [slots]uint64
	for r := range s.table.unsent {
		if since := r.unsentSince(); unsent[r.slot] == 0 || since < unsent[r.slot] {
			unsent[r.slot] = since
		}
	}
	save := cursorUpdates{}
	for i := range s.slots {
		if !s.slots[i].ready {
			continue
		}
		if base := s.slots[i].loadedFrom; len(s.checkpoints) == 0 && unsent[i] == 0 && base != s.slots[i].cursor {
			save[i] = base
		}
		for m := len(s.checkpoints) - 1; m >= 0; m-- {
			if unsent[i] == 0 || s.checkpoints[m].round < unsent[i] {
				if s.checkpoints[m].cursor != s.slots[i].cursor {
					save[i] = s.checkpoints[m].cursor
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
			s.takeRequest(c.Spec, s.lastRound, now)
		}
		return
	}
	number := slotOf(c.ID)
	k, d := key{c.Kind, c.ID}, s.watched[c.Kind]
	s.requeueRelated(k, c, now)
	if s.slots[number].epoch == 0 {
		return
	}
	r := s.table.all[k]
	if c.Removed || !s.matchesSelector(d, &c.Document) {
		if !s.slots[number].ready {
			s.removedDuringLoad[k] = c.Version
		}
		if r != nil && r.Version < c.Version {
			s.table.remove(r)
		}
		return
	}
	if r == nil {
		r = s.table.getOrAdd(k, number)
	} else if c.Version <= r.Version {
		return
	}
	s.table.setOwner(r, d.owner(&c.Document))
	change := Change{c.Version, c.Generation, progressHash(&c.Document), c.DeletedAt != nil, s.lastRound}
	next := s.policy.ApplyChange(r.State, change, now)
	s.table.releaseDocument(r)
	if next.Due != 0 && next.Due <= instantOf(now.Add(s.policy.Debounce)) {
		s.table.keepDocument(r, &c.Document)
	}
	s.table.setState(r, next)
}

// requeueRelated makes resources due that may wait for a changed document: the resources below it, or, when the
// document was removed, its owner. It leaves reconciled resources alone, and marks no event as unsent, because a
// timer makes these resources due as well.
func (s *Sentinel) requeueRelated(k key, c *store.Change, now time.Time) {
	if !c.Removed {
		for r := range s.table.children[k] {
			s.table.setState(r, s.policy.ApplyRecheck(r.State, Urgent, now))
		}
		return
	}
	if r := s.table.all[s.watched[c.Kind].owner(&c.Document)]; r != nil {
		s.table.setState(r, s.policy.ApplyRecheck(r.State, Urgent, now))
	}
}

// owner returns the key of the resource that owns a document; the zero key if there is none.
func (d *watchedKind) owner(doc *store.Document) key {
	if d.kind.Parent == "" || doc.Scope == "" {
		return key{}
	}
	return key{d.kind.Parent, doc.Scope}
}

// matchesSelector reports whether a document has the labels of its configuration's
// selector.
func (s *Sentinel) matchesSelector(d *watchedKind, doc *store.Document) bool {
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

// takeRequest handles a request of the feed. While the resources of a slot are being read, it also keeps the request
// for them.
func (s *Sentinel) takeRequest(spec []byte, round uint64, now time.Time) {
	req, err := readRequest(spec)
	if err != nil {
		s.log.Warn("the sentinel cannot decode a request for events; it is ignored", "error", err)
		return
	}
	for i := range s.slots {
		if s.slots[i].epoch != 0 && !s.slots[i].ready {
			s.requestsDuringLoad = append(s.requestsDuringLoad, req)
			break
		}
	}
	s.applyRequest(req, func(int) bool { return true }, round, now)
}

// applyRequest makes the requested resources due, in the slots for which inSlot is true.
func (s *Sentinel) applyRequest(req request, inSlot func(slot int) bool, round uint64, now time.Time) {
	if req.ID != "" {
		for kind := range s.watched {
			if r := s.table.all[key{kind, req.ID}]; r != nil && inSlot(int(r.slot)) &&
				(req.Kind == "" || req.Kind == kind) {
				s.table.setState(r, s.policy.ApplyRequest(r.State, Urgent, round, now))
			}
		}
		return
	}
	for _, r := range s.table.all {
		if (req.Kind == "" || req.Kind == r.kind) && inSlot(int(r.slot)) {
			s.table.setState(r, s.policy.ApplyRequest(r.State, Routine, round, now))
		}
	}
}

// handleHello handles the hello message of an adapter that has just connected. The adapter has received none of the
// earlier events, so handleHello makes the pending resources of its topic and slots due.
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
	wants := func(d *watchedKind, id string) bool { return d.helloTopic == topic && hello.Wants(id) }
	s.mail.post(func() { s.requeuePending(wants) })
}

// trackConnection records that the client is connected to the broker until ctx, which is that of the connection, ends.
// It makes all pending resources due at first, because the broker does not store events.
func (s *Sentinel) trackConnection(ctx context.Context) {
	s.mail.post(func() {
		s.connected = true
		s.requeuePending(func(*watchedKind, string) bool { return true })
	})
	<-ctx.Done()
	s.mail.post(func() { s.connected = false })
}

// requeuePending makes due, of the resources for which selects is true, those with an unacknowledged event,
// those that are not reconciled, and those with a recent request.
func (s *Sentinel) requeuePending(selects func(d *watchedKind, id string) bool) {
	now := time.Now()
	for _, r := range s.table.all {
		if !selects(s.watched[r.kind], r.id) {
			continue
		}
		if next := s.policy.ApplyConnect(r.State, now); next != r.State {
			s.table.setState(r, next)
		}
	}
}
