package sentinel

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"atoll.dev/store"
)

// beats keeps this replica in the fleet, and its slots' cursors saved.
func (s *Sentinel) beats(ctx context.Context) {
	tick := time.NewTicker(s.opts.Lease / renewals)
	defer tick.Stop()
	for {
		var save saving
		if !s.mail.call(ctx, func() { save = s.cursors(); s.gauge() }) {
			return
		}
		held, err := s.membership.beat(ctx, save)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !errors.Is(err, errSameName):
			s.log.Warn("the sentinel's lease is not renewed", "error", err)
		default:
			if err != nil {
				s.log.Error("the sentinel's name is taken; give each replica its own", "error", err)
			} else {
				s.alive.Store(time.Now().UnixMicro())
			}
			if !s.mail.call(ctx, func() { s.settle(save, held) }) {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *Sentinel) gauge() {
	for kind, d := range s.duties {
		c := s.table.count(kind)
		s.metrics.pending.WithLabelValues(d.labels...).Set(float64(c.pending))
		s.metrics.resources.WithLabelValues(d.labels...).Set(float64(c.resources))
		if s.opts.Feed.Check(context.Background()) == nil {
			s.metrics.lastPoll.WithLabelValues(d.labels...).Set(float64(time.Now().UnixMilli()) / 1000)
		}
	}
}

// settle takes note of what the database says: cursors that were saved, slots
// that are others' now, and slots that are new.
func (s *Sentinel) settle(saved saving, held holding) {
	lost := map[int]bool{}
	var fresh []int
	for i := range s.slots {
		cursor, mine := held[i]
		switch {
		case mine && s.slots[i].epoch == 0:
			s.slots[i] = slot{epoch: 1, cursor: cursor}
			fresh = append(fresh, i)
		case mine:
			if c, ok := saved[i]; ok {
				s.slots[i].cursor = c
			}
		case s.slots[i].epoch != 0:
			s.slots[i] = slot{}
			lost[i] = true
		}
	}
	s.metrics.held.Set(float64(len(held)))
	if len(lost) > 0 {
		s.log.Info("slots are others' now", "slots", len(lost))
		s.lose(func(i int) bool { return lost[i] })
	}
	if len(fresh) > 0 {
		s.log.Info("slots are taken", "slots", len(fresh), "held", len(held))
		s.gain(fresh)
	}
	s.whole()
}

// whole notes whether all slots were read.
func (s *Sentinel) whole() {
	for i := range s.slots {
		if s.slots[i].epoch != 0 && !s.slots[i].ready {
			s.loaded.Store(false)
			return
		}
	}
	clear(s.removed)
	s.waiting = nil
	s.loaded.Store(true)
	s.ready.Store(true)
}

// lose forgets the resources of slots.
func (s *Sentinel) lose(which func(slot int) bool) {
	for _, r := range s.table.all {
		if which(int(r.slot)) {
			s.table.drop(r)
		}
	}
}

// load is a reading of slots.
type load struct {
	epoch   uint64 // of the slots
	cursors map[store.Cursor][]int32
}

// gain begins to read slots.
func (s *Sentinel) gain(fresh []int) {
	s.epoch++
	l := load{epoch: s.epoch, cursors: map[store.Cursor][]int32{}}
	for _, i := range fresh {
		s.slots[i].epoch, s.slots[i].ready = l.epoch, false
		l.cursors[s.slots[i].cursor] = append(l.cursors[s.slots[i].cursor], int32(i))
	}
	s.loaded.Store(false)
	s.start(func(ctx context.Context) { s.load(ctx, l) })
}

// load reads slots until it has, or they are another's.
func (s *Sentinel) load(ctx context.Context, l load) {
	for {
		err := s.tryLoad(ctx, l)
		if err == nil || errors.Is(err, errLost) || ctx.Err() != nil {
			return
		}
		s.log.Warn("resources cannot be read; they are tried again", "error", err)
		current := false
		if !s.mail.call(ctx, func() {
			for i := range s.slots {
				current = current || s.slots[i].epoch == l.epoch
			}
		}) || !current {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// errLost ends the reading of slots that are another's, or are read anew.
var errLost = errors.New("the slots were lost")

// tryLoad lists what the slots' cursors have not seen, which is urgent, then
// everything. What changed meanwhile comes by the feed; but the list of
// everything may have been faster than the feed, and takes a document that is
// new for an old one. So what is unseen is listed once more. Without a cursor
// everything is unseen.
func (s *Sentinel) tryLoad(ctx context.Context, l load) error {
	base, err := s.store.CurrentCursor(ctx) // all that it sees, the lists see
	if err != nil {
		return err
	}
	var known []int32 // slots with a cursor
	for cursor, in := range l.cursors {
		if err := s.loadUnseen(ctx, l, cursor, in); err != nil {
			return err
		}
		if cursor != "" {
			known = append(known, in...)
		}
	}
	if len(known) > 0 {
		for _, kind := range s.kinds {
			q := store.Query{Kind: kind, Where: inSlots(known)}
			if err := s.pages(ctx, q, func(docs []store.Document) bool {
				return s.findSeen(ctx, l, docs)
			}); err != nil {
				return err
			}
		}
		for cursor, in := range l.cursors {
			if cursor == "" {
				continue
			}
			if err := s.loadUnseen(ctx, l, cursor, in); err != nil {
				return err
			}
		}
	}
	s.mail.call(ctx, func() {
		mine := func(i int) bool { return s.slots[i].epoch == l.epoch }
		for i := range s.slots {
			if mine(i) {
				s.slots[i].ready, s.slots[i].base = true, base
			}
		}
		for _, req := range s.waiting {
			s.answer(req, mine, 1, time.Now())
		}
		s.whole()
	})
	return nil
}

// inSlots is the condition that a document is of some slots; none when it is of
// any, because PostgreSQL thinks that the condition leaves next to nothing, and
// sorts instead of using the index.
func inSlots(in []int32) store.Fragment {
	if len(in) == slots {
		return store.Fragment{}
	}
	return store.Fragment{SQL: slotSQL + " = any($1)", Args: []any{in}}
}

// maxPage is about how many bytes of documents are read at once.
const maxPage = 8 << 20

// pages lists page by page; a statement has a time limit.
func (s *Sentinel) pages(ctx context.Context, q store.Query, each func([]store.Document) bool) error {
	q.Deletion, q.Limit, q.Bytes = store.WithDeleting, 1000, maxPage
	for {
		page, err := s.store.List(ctx, q)
		if err != nil {
			return err
		}
		if len(page.Documents) > 0 && !each(page.Documents) {
			return cmp.Or(context.Cause(ctx), errLost)
		}
		if q.After = page.Next; q.After == "" {
			return nil
		}
	}
}

// manyUnseen is when what a cursor has not seen is no longer urgent.
const manyUnseen = 2000

// found is a document of a list, decided upon.
type found struct {
	key    key
	owner  key
	slot   int
	change Change
	unseen bool // and an event is needed
	after  After
}

// judge decides on a document of a list. published is the generation of its last event, 0 if there was none. The
// result is false when the sentinel's selector does not match the document.
func (s *Sentinel) judge(ctx context.Context, doc *store.Document, published int64,
	now time.Time) (found, Verdict, bool) {
	d := s.duties[doc.Kind]
	f, err := FactsOf(doc.Wire)
	x := found{key: key{doc.Kind, doc.ID}, owner: d.owner(doc), slot: slotOf(doc.ID), change: Change{doc.Version,
		doc.Generation, markOf(doc), doc.DeletedAt != nil, 1}}
	if err == nil && !d.rules.matches(f) {
		return x, Verdict{}, false
	}
	var v Verdict
	if err == nil {
		v, err = d.rules.verdict(ctx, f, State{Generation: doc.Generation, Published: published}, now)
	}
	// A resource whose rules fail is due: the loop then decides again and counts the failure.
	v.Wanted = v.Wanted || err != nil
	x.after = After{Wanted: v.Wanted, Flip: v.Flip}
	return x, v, true
}

// findSeen puts resources into the table whose events were all sent.
func (s *Sentinel) findSeen(ctx context.Context, l load, docs []store.Document) (current bool) {
	all := make([]found, 0, len(docs))
	now := time.Now()
	for i := range docs {
		if x, _, ours := s.judge(ctx, &docs[i], docs[i].Generation, now); ours {
			all = append(all, x)
		}
	}
	return s.mail.call(ctx, func() { current = s.find(l, all, false) }) && current
}

// loadUnseen lists what slots' cursor has not seen, requests among it. It lists
// kind by kind: an index has that order.
func (s *Sentinel) loadUnseen(ctx context.Context, l load, cursor store.Cursor, in []int32) error {
	count := 0
	each := func(docs []store.Document) bool {
		count += len(docs)
		return s.findUnseen(ctx, l, cursor != "" && count <= manyUnseen, docs)
	}
	for _, kind := range s.kinds {
		q := store.Query{Kind: kind, ChangedSince: cursor, Where: inSlots(in)}
		if err := s.pages(ctx, q, each); err != nil {
			return err
		}
	}
	if s.opts.Requests == "" {
		return nil
	}
	return s.pages(ctx, store.Query{Kind: s.opts.Requests, ChangedSince: cursor}, each)
}

// findUnseen puts resources into the table whose last event may not have been sent.
func (s *Sentinel) findUnseen(ctx context.Context, l load, urgent bool, docs []store.Document) (current bool) {
	var all []found
	var requests []request
	now := time.Now()
	for i := range docs {
		if s.duties[docs[i].Kind] == nil {
			if req, err := readRequest(docs[i].Spec); err == nil {
				requests = append(requests, req)
			}
		} else if x, v, ours := s.judge(ctx, &docs[i], 0, now); ours {
			x.unseen = v.Wanted
			all = append(all, x)
		}
	}
	return s.mail.call(ctx, func() {
		current = s.find(l, all, urgent)
		for _, req := range requests {
			if !slices.Contains(s.waiting, req) {
				s.waiting = append(s.waiting, req) // until the slots are read
			}
		}
	}) && current
}

// find puts what a list found into the table. It returns whether any of the
// slots is still to be read.
func (s *Sentinel) find(l load, all []found, urgent bool) (current bool) {
	now := time.Now()
	for i := range s.slots {
		current = current || s.slots[i].epoch == l.epoch
	}
	for _, x := range all {
		if s.slots[x.slot].epoch != l.epoch || s.removed[x.key] >= x.change.Version {
			continue
		}
		r := s.table.get(x.key, x.slot)
		s.table.own(r, x.owner)
		s.table.put(r, s.policy.Found(r.State, x.change, x.unseen, urgent, x.after, now))
	}
	return current
}
