package sentinel

import (
	"context"
	"encoding/json"
	"errors"
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
			s.follow()
		case <-s.mail.woken:
			for _, f := range s.mail.take() {
				f()
			}
		case <-timer.C:
		}
		timer.Reset(s.work(ctx, time.Now()))
	}
}

// follow takes what the feed has brought.
func (s *Sentinel) follow() {
	begun := time.Now()
	rounds, err := s.sub.Take()
	if err != nil {
		// Too slow, or the database was put back: what is held is read again.
		s.log.Warn("the sentinel reads its resources again", "reason", err)
		s.sub.Close()
		s.sub = s.opts.Feed.Subscribe(s.concerns)
		s.marks = nil
		clear(s.removed) // the lists that begin now do not have them; another life's versions say nothing
		s.lose(func(int) bool { return true })
		var again []int
		for i := range s.slots {
			if s.slots[i].epoch != 0 {
				again = append(again, i)
			}
		}
		s.gain(again)
		return
	}
	for _, round := range rounds {
		s.round = round.Number
		for _, c := range round.Changes {
			s.changed(c, begun)
		}
		if round.Cursor != "" {
			s.mark(checkpoint{round.Number, round.Cursor})
		}
	}
	now := time.Now()
	for _, d := range s.duties {
		s.metrics.polls.WithLabelValues(d.labels...).Observe(now.Sub(begun).Seconds())
		s.metrics.lastPoll.WithLabelValues(d.labels...).Set(float64(now.UnixMilli()) / 1000)
	}
}

// mark keeps a checkpoint. When an event stays unsent for long and the checkpoints become many, mark drops every
// other one of the older half; cursors then lie a little earlier.
func (s *Sentinel) mark(c checkpoint) {
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

// changed deals with a document of the feed.
func (s *Sentinel) changed(c *store.Change, now time.Time) {
	if c.Kind == s.opts.Requests {
		if !c.Removed {
			s.asked(c.Spec, s.round, now)
		}
		return
	}
	number := slotOf(c.ID)
	k, d := key{c.Kind, c.ID}, s.duties[c.Kind]
	s.related(k, c, now)
	if s.slots[number].epoch == 0 {
		return
	}
	r := s.table.all[k]
	if c.Removed || !s.concernsLabels(d, &c.Document) {
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
	next := s.policy.Changed(r.State, Change{c.Version, c.Generation, markOf(&c.Document), c.DeletedAt != nil, s.round},
		now)
	s.table.release(r)
	if next.Due != 0 && next.Due <= instantOf(now.Add(s.policy.Debounce)) {
		s.table.hold(r, &c.Document)
	}
	s.table.put(r, next)
}

// related makes resources due that may wait for a changed document: the resources below it, or, when the
// document was removed, its owner. It leaves reconciled resources alone, and marks no event as unsent, because a
// timer makes these resources due as well.
func (s *Sentinel) related(k key, c *store.Change, now time.Time) {
	if !c.Removed {
		for r := range s.table.owned[k] {
			s.table.put(r, s.policy.Asked(r.State, false, true, 0, now))
		}
		return
	}
	if r := s.table.all[s.duties[c.Kind].owner(&c.Document)]; r != nil {
		s.table.put(r, s.policy.Asked(r.State, false, true, 0, now))
	}
}

// owner is the resource that owns a document; none for the zero key.
func (d *duty) owner(doc *store.Document) key {
	if d.kind.Parent == "" || doc.Scope == "" {
		return key{}
	}
	return key{d.kind.Parent, doc.Scope}
}

// concernsLabels says whether a document has the labels of its configuration's
// selector.
func (s *Sentinel) concernsLabels(d *duty, doc *store.Document) bool {
	if len(d.rules.selector) == 0 {
		return true
	}
	f, err := FactsOf(doc.Wire)
	return err == nil && d.rules.matches(f)
}

// request is the spec of a document that asks for events.
type request struct {
	Kind store.Kind `json:"kind"`
	ID   string     `json:"id"`
}

func readRequest(spec []byte) (req request, err error) { return req, json.Unmarshal(spec, &req) }

// asked deals with a request of the feed. Slots that are being read have it
// once they were.
func (s *Sentinel) asked(spec []byte, round uint64, now time.Time) {
	req, err := readRequest(spec)
	if err != nil {
		s.log.Warn("a request for work cannot be read", "error", err)
		return
	}
	for i := range s.slots {
		if s.slots[i].epoch != 0 && !s.slots[i].ready {
			s.waiting = append(s.waiting, req)
			break
		}
	}
	s.answer(req, func(int) bool { return true }, round, now)
}

// answer makes the resources due that a request is about, in some of the slots.
func (s *Sentinel) answer(req request, in func(slot int) bool, round uint64, now time.Time) {
	if req.ID != "" {
		for kind := range s.duties {
			if r := s.table.all[key{kind, req.ID}]; r != nil && in(int(r.slot)) &&
				(req.Kind == "" || req.Kind == kind) {
				s.table.put(r, s.policy.Asked(r.State, true, true, round, now))
			}
		}
		return
	}
	for _, r := range s.table.all {
		if (req.Kind == "" || req.Kind == r.kind) && in(int(r.slot)) {
			s.table.put(r, s.policy.Asked(r.State, true, false, round, now))
		}
	}
}

// greet handles the hello of an adapter that has just connected. The adapter has received none of the earlier
// events, so that pending resources become due again.
func (s *Sentinel) greet(_ context.Context, m bus.Message) {
	m.Ack()
	topic, ok := strings.CutPrefix(m.Topic, bus.HelloTopic(""))
	if !ok || m.Event.Type != bus.HelloType {
		return
	}
	var hello bus.Hello // one that cannot be read wants all
	if err := json.Unmarshal(m.Event.Data, &hello); err != nil {
		s.log.Warn("a hello cannot be read", "adapter", m.Event.Source, "error", err)
		hello = bus.Hello{}
	}
	s.log.Info("an adapter wants events", "adapter", m.Event.Source, "topic", topic, "slots", len(hello.Slots), "of",
		hello.Of)
	s.mail.post(func() { s.again(func(d *duty, id string) bool { return d.hello == topic && hello.Wants(id) }) })
}

// connected runs while the bus's connection stands. The broker keeps nothing.
func (s *Sentinel) connected(ctx context.Context) {
	s.mail.post(func() {
		s.up = true
		s.again(func(*duty, string) bool { return true })
	})
	<-ctx.Done()
	s.mail.post(func() { s.up = false })
}

// again makes due what was not acknowledged, what is not reconciled, and what was
// asked for lately.
func (s *Sentinel) again(which func(d *duty, id string) bool) {
	now := time.Now()
	for _, r := range s.table.all {
		if !which(s.duties[r.kind], r.id) {
			continue
		}
		if next := s.policy.AdapterConnected(r.State, now); next != r.State {
			s.table.put(r, next)
		}
	}
}

// idle is how long the loop waits when nothing is due.
const idle = time.Minute

// work decides on what is due, and returns when more will be.
func (s *Sentinel) work(ctx context.Context, now time.Time) time.Duration {
	at := instantOf(now)
	var batch []key
	defer func() {
		if len(batch) > 0 {
			s.reading = true
			s.read <- batch
		}
	}()
	for s.up && s.sending < maxSending && ctx.Err() == nil {
		r, wait := s.next(at, now)
		if r == nil {
			return wait
		}
		if r.held != nil {
			s.decide(ctx, r, r.held, now)
			continue
		}
		if s.reading || len(batch) == maxReading {
			return idle // until the reader is done, which is a letter
		}
		r.reading = true
		s.table.enqueue(r)
		batch = append(batch, r.key)
	}
	return idle
}

// next is the resource to decide on, or nil and for how long there is none. What
// is urgent comes first; the rest comes at the pace.
func (s *Sentinel) next(at instant, now time.Time) (*resource, time.Duration) {
	wait := idle
	for _, q := range []*queue{&s.table.urgent, &s.table.routine} {
		if len(*q) == 0 {
			continue
		}
		r := (*q)[0]
		until := time.Duration(r.Due-at) * time.Microsecond
		if until <= 0 {
			// What has to wait for the reader takes no part of the pace.
			if q == &s.table.urgent || s.reading && r.held == nil || s.pace.AllowN(now, 1) {
				return r, 0
			}
			until = time.Duration(float64(time.Second) / s.opts.Pace)
		}
		wait = min(wait, until)
	}
	return nil, max(wait, time.Millisecond/2)
}

// decide asks the rules, and sends what they want sent.
func (s *Sentinel) decide(ctx context.Context, r *resource, doc *store.Document, now time.Time) {
	d := s.duties[r.kind]
	fresh := r.held == doc
	state := r.State
	state.Generation = max(state.Generation, doc.Generation) // read just now, it may be ahead of the feed
	f, err := FactsOf(doc.Wire)
	var v Verdict
	if err == nil {
		v, err = d.rules.verdict(ctx, f, state, now)
	}
	if err != nil && ctx.Err() != nil {
		return // the process ends; the event stays unsent, and the next holder of the slot sends it
	}
	if err != nil {
		v.Failed = true
		s.metrics.skippedOne(d, reasonError)
		if s.badLog.Allow() {
			s.log.Warn("a decision failed; it is tried again later", "kind", r.kind, "id", r.id, "error", err)
		}
	}
	next, send := s.policy.Decided(state, v, now)
	s.table.release(r)
	s.table.put(r, next)
	switch {
	case send:
		reason := reasonMatched
		if !v.Wanted {
			reason = reasonAsked
		}
		s.send(ctx, r, doc, f, reason, fresh)
	case !v.Failed:
		s.metrics.skippedOne(d, reasonFalse)
	}
}

// verdict is what the rules say of a state, and of the state after an event.
func (r *Rules) verdict(ctx context.Context, f Facts, s State, now time.Time) (v Verdict, err error) {
	told := Publication{s.Published, s.PublishedAt.time(), int(s.Attempts)}
	if v.Wanted, err = r.Decide(ctx, f, told, now); err != nil {
		return v, err
	}
	var flip time.Time
	if !v.Wanted && !s.Forced {
		flip, err = r.Flip(ctx, f, told, now)
		v.Flip = instantOf(flip)
		return v, err
	}
	told = Publication{s.Generation, now, told.Attempts + 1}
	if v.After.Wanted, err = r.Decide(ctx, f, told, now); err == nil && !v.After.Wanted {
		flip, err = r.Flip(ctx, f, told, now)
		v.After.Flip = instantOf(flip)
	}
	if err != nil { // it is sent, and looked at again
		v.After, err = After{Wanted: true}, nil
	}
	return v, err
}

// reader reads documents that are due.
func (s *Sentinel) reader(ctx context.Context) {
	for {
		var keys []key
		select {
		case <-ctx.Done():
			return
		case keys = <-s.read:
		}
		ids := make([]string, len(keys))
		for i, k := range keys {
			ids[i] = k.id
		}
		page, err := s.store.List(ctx, store.Query{Kinds: s.kinds, Where: store.Fragment{SQL: "d.id = any($1)",
			Args: []any{ids}},
			Limit: len(keys) * len(s.kinds), Deletion: store.WithDeleting})
		found := make(map[key]*store.Document, len(page.Documents))
		for i := range page.Documents {
			d := &page.Documents[i]
			found[key{d.Kind, d.ID}] = d
		}
		s.mail.post(func() { s.wasRead(ctx, keys, found, err) })
	}
}

// wasRead decides on what was read.
func (s *Sentinel) wasRead(ctx context.Context, keys []key, found map[key]*store.Document, err error) {
	s.reading = false
	now := time.Now()
	if err != nil && !errors.Is(err, context.Canceled) {
		s.log.Warn("resources that are due cannot be read", "error", err)
		for _, d := range s.duties {
			s.metrics.apiErrors.WithLabelValues(d.labels[0], d.labels[1], "fetch_error").Inc()
		}
	}
	for _, k := range keys {
		r := s.table.all[k]
		if r == nil || !r.reading {
			continue
		}
		r.reading = false
		doc := found[k]
		if r.held != nil && (doc == nil || doc.Version < r.held.Version) {
			doc = r.held
		}
		switch {
		case doc != nil && doc.Version >= r.Version && s.up && ctx.Err() == nil:
			s.decide(ctx, r, doc, now)
		case doc != nil:
			s.table.put(r, r.State) // due when the bus is back; or at once, when it changed meanwhile
		default: // removed, of which the feed will tell; or the database is away
			state := r.State
			state.Due = instantOf(now.Add(s.policy.MinRetry))
			s.table.put(r, state)
		}
	}
}
