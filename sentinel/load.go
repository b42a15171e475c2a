package sentinel

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"atoll.dev/store"
)

// renewLeases renews the lease of this replica's slots and saves their cursors, several times in
// each lease, until ctx ends.
func (s *Sentinel) renewLeases(ctx context.Context) {
	tick := time.NewTicker(s.opts.Lease / renewals)
	defer tick.Stop()
	for {
		var save cursorUpdates
		if !s.mail.call(ctx, func() { save = s.cursors(); s.setGauges() }) {
			return
		}
		held, err := s.membership.renewAndShare(ctx, save)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !errors.Is(err, errSameName):
			s.log.Warn("the sentinel cannot renew its lease", "error", err)
		default:
			if err != nil {
				s.log.Error("another process has the sentinel's name; give each replica its own", "error", err)
			} else {
				s.leaseRenewedAt.Store(time.Now().UnixMicro())
			}
			if !s.mail.call(ctx, func() { s.applyHolding(save, held) }) {
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

// setGauges sets the gauges of each kind.
func (s *Sentinel) setGauges() {
	for kind, d := range s.watched {
		c := s.table.count(kind)
		s.metrics.pending.WithLabelValues(d.labels...).Set(float64(c.pending))
		s.metrics.resources.WithLabelValues(d.labels...).Set(float64(c.resources))
		if s.opts.Feed.Check(context.Background()) == nil {
			s.metrics.lastPoll.WithLabelValues(d.labels...).Set(float64(time.Now().UnixMilli()) / 1000)
		}
	}
}

// applyHolding brings the loop's slots in step with the database: it records saved cursors,
// drops the resources of lost slots, and starts to read the resources of new slots.
func (s *Sentinel) applyHolding(saved cursorUpdates, held heldSlots) {
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
		s.log.Info("other replicas took slots", "slots", len(lost))
		s.dropSlots(func(i int) bool { return lost[i] })
	}
	if len(fresh) > 0 {
		s.log.Info("this replica took slots", "slots", len(fresh), "held", len(held))
		s.loadSlots(fresh)
	}
	s.markLoaded()
}

// markLoaded records whether the resources of all held slots were read. If so, it drops the removed documents and
// requests that were kept for the reading.
func (s *Sentinel) markLoaded() {
	for i := range s.slots {
		if s.slots[i].epoch != 0 && !s.slots[i].ready {
			s.slotsRead.Store(false)
			return
		}
	}
	clear(s.removedDuringLoad)
	s.requestsDuringLoad = nil
	s.slotsRead.Store(true)
	s.wasReady.Store(true)
}

// dropSlots removes from the table the resources of slots for which lost is true.
func (s *Sentinel) dropSlots(lost func(slot int) bool) {
	for _, r := range s.table.all {
		if lost(int(r.slot)) {
			s.table.remove(r)
		}
	}
}

// slotLoad is one attempt to read the resources of slots.
type slotLoad struct {
	epoch   uint64                   // of the slots
	cursors map[store.Cursor][]int32 // the slots by their cursor
}

// loadSlots starts a goroutine that reads the resources of slots.
func (s *Sentinel) loadSlots(fresh []int) {
	s.lastEpoch++
	l := slotLoad{epoch: s.lastEpoch, cursors: map[store.Cursor][]int32{}}
	for _, i := range fresh {
		s.slots[i].epoch, s.slots[i].ready = l.epoch, false
		l.cursors[s.slots[i].cursor] = append(l.cursors[s.slots[i].cursor], int32(i))
	}
	s.slotsRead.Store(false)
	s.startGoroutine(func(ctx context.Context) { s.retryLoad(ctx, l) })
}

// retryLoad calls tryLoad until it succeeds or this load has no slots any more.
func (s *Sentinel) retryLoad(ctx context.Context, l slotLoad) {
	for {
		err := s.tryLoad(ctx, l)
		if err == nil || errors.Is(err, errSlotsLost) || ctx.Err() != nil {
			return
		}
		s.log.Warn("the sentinel cannot read the resources of its slots; it tries again", "error", err)
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

// errSlotsLost is the error of a load whose slots belong to another replica or to a later load.
var errSlotsLost = errors.New("the slots were lost")

// tryLoad reads the resources of slots with three lists:
//  1. the documents after the slots' saved cursors, called unsent: their events may be unsent;
//  2. all documents;
//  3. the documents that have changed since the first list began.
//
// The feed has the changes that happen during the lists. But the second list may have a new document before
// the feed has it, and counts its event as sent; the third list corrects that. Without a cursor all documents
// are unsent.
//
// The sentinel decides once on a document that does not change during the lists: the first list has all changes
// before base, which the third leaves out, and putSent leaves out versions that are in the table.
func (s *Sentinel) tryLoad(ctx context.Context, l slotLoad) error {
	base, err := s.store.CurrentCursor(ctx)
	if err != nil {
		return err
	}
	var known []int32 // slots with a cursor
	for cursor, slots := range l.cursors {
		if err := s.loadUnsent(ctx, l, cursor, slots); err != nil {
			return err
		}
		if cursor != "" {
			known = append(known, slots...)
		}
	}
	if len(known) > 0 {
		for _, kind := range s.kinds {
			q := store.Query{Kind: kind, Where: inSlots(known)}
			if err := s.listPages(ctx, q, func(docs []store.Document) bool {
				return s.putSent(ctx, l, docs)
			}); err != nil {
				return err
			}
		}
		if err := s.loadUnsent(ctx, l, base, known); err != nil {
			return err
		}
	}
	s.mail.call(ctx, func() {
		mine := func(i int) bool { return s.slots[i].epoch == l.epoch }
		for i := range s.slots {
			if mine(i) {
				s.slots[i].ready, s.slots[i].loadedFrom = true, base
			}
		}
		for _, req := range s.requestsDuringLoad {
			s.applyRequest(req, mine, 1, time.Now())
		}
		s.markLoaded()
	})
	return nil
}

// inSlots returns the SQL condition that a document is in one of some slots. For all slots it
// returns no condition: PostgreSQL would estimate that few rows pass it, and
// sort instead of using the index.
func inSlots(in []int32) store.Fragment {
	if len(in) == slots {
		return store.Fragment{}
	}
	return store.Fragment{SQL: slotSQL + " = any($1)", Args: []any{in}}
}

// maxPageBytes bounds the bytes of documents in one page.
const maxPageBytes = 8 << 20

// listPages lists documents page by page, because a statement has a time limit. It reads the next page while each
// handles a page. It stops with errSlotsLost when each returns false.
func (s *Sentinel) listPages(ctx context.Context, q store.Query, each func([]store.Document) bool) error {
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	q.Deletion, q.Limit, q.Bytes = store.WithDeleting, 1000, maxPageBytes
	q.WithoutSpec = q.Kind != s.opts.Requests
	type answer struct {
		page store.Page
		err  error
	}
	answers := make(chan answer, 1)
	read := func() {
		page, err := s.store.List(reading, q)
		answers <- answer{page, err}
	}
	go read()
	for {
		a := <-answers
		if q.After = a.page.Next; q.After != "" && a.err == nil {
			go read()
		}
		current := a.err != nil || len(a.page.Documents) == 0 || each(a.page.Documents)
		if a.err == nil && current && q.After != "" {
			continue
		}
		cancel()
		if a.err == nil && q.After != "" {
			<-answers // of the next page, which is not used
		}
		if !current {
			return cmp.Or(context.Cause(ctx), errSlotsLost)
		}
		return a.err
	}
}

// maxUrgentUnsent is how many unsent documents are urgent; further ones are routine.
const maxUrgentUnsent = 2000

// listedDocument is a document of a list, with the decision on it.
type listedDocument struct {
	key    key
	owner  key
	slot   int
	change Change
	unsent bool // the document lies after the slot's cursor, and the rules want an event
	after  NextDecision
}

// decideListed decides on a document of a list. published is the generation of its last event, 0: none. The result is
// false if the sentinel's selector does not match the document.
func (s *Sentinel) decideListed(ctx context.Context, doc *store.Document, published int64,
	now time.Time) (listedDocument, Verdict, bool) {
	s.listDecisions.Add(1)
	d := s.watched[doc.Kind]
	f, err := d.rules.Facts(doc.Wire)
	x := listedDocument{key: key{doc.Kind, doc.ID}, owner: d.owner(doc), slot: slotOf(doc.ID), change: Change{doc.Version,
		doc.Generation, progressHash(doc), doc.DeletedAt != nil, 1}}
	if err == nil && !d.rules.matches(f) {
		return x, Verdict{}, false
	}
	var v Verdict
	if err == nil {
		v, err = d.rules.verdict(ctx, f, State{Generation: doc.Generation, Published: published}, now)
	}
	// A resource whose rules fail is due: the loop then decides again and counts the failure.
	v.Wanted = v.Wanted || err != nil
	x.after = NextDecision{Wanted: v.Wanted, TrueAt: v.TrueAt}
	return x, v, true
}

// putSent puts documents into the table whose events were all sent. It leaves out documents if the table has the same
// or a newer version, from the list of unsent documents or from the feed. It returns whether the load has a slot left.
func (s *Sentinel) putSent(ctx context.Context, l slotLoad, docs []store.Document) (current bool) {
	known := make([]bool, len(docs))
	if !s.mail.call(ctx, func() {
		for i := range docs {
			r := s.table.all[key{docs[i].Kind, docs[i].ID}]
			known[i] = r != nil && r.Version >= docs[i].Version
		}
	}) {
		return false
	}
	all := make([]listedDocument, 0, len(docs))
	now := time.Now()
	for i := range docs {
		if known[i] {
			continue
		}
		if x, _, ours := s.decideListed(ctx, &docs[i], docs[i].Generation, now); ours {
			all = append(all, x)
		}
	}
	return s.mail.call(ctx, func() { current = s.putListed(l, all, Routine) }) && current
}

// loadUnsent lists the documents and requests after a cursor of slots. It lists kind by
// kind, in the order of an index.
func (s *Sentinel) loadUnsent(ctx context.Context, l slotLoad, cursor store.Cursor, in []int32) error {
	count := 0
	each := func(docs []store.Document) bool {
		count += len(docs)
		return s.putUnsent(ctx, l, Urgency(cursor != "" && count <= maxUrgentUnsent), docs)
	}
	for _, kind := range s.kinds {
		q := store.Query{Kind: kind, ChangedSince: cursor, Where: inSlots(in)}
		if err := s.listPages(ctx, q, each); err != nil {
			return err
		}
	}
	if s.opts.Requests == "" {
		return nil
	}
	return s.listPages(ctx, store.Query{Kind: s.opts.Requests, ChangedSince: cursor}, each)
}

// putUnsent puts documents into the table whose last event may be unsent. It returns whether the load has a slot left.
func (s *Sentinel) putUnsent(ctx context.Context, l slotLoad, urgency Urgency, docs []store.Document) (current bool) {
	var all []listedDocument
	var requests []request
	now := time.Now()
	for i := range docs {
		if s.watched[docs[i].Kind] == nil {
			if req, err := readRequest(docs[i].Spec); err == nil {
				requests = append(requests, req)
			}
		} else if x, v, ours := s.decideListed(ctx, &docs[i], 0, now); ours {
			x.unsent = v.Wanted
			all = append(all, x)
		}
	}
	return s.mail.call(ctx, func() {
		current = s.putListed(l, all, urgency)
		for _, req := range requests {
			if !slices.Contains(s.requestsDuringLoad, req) {
				s.requestsDuringLoad = append(s.requestsDuringLoad, req) // until the slots are read
			}
		}
	}) && current
}

// putListed puts documents of a list into the table, except documents of slots that the load has lost and documents
// that were removed since. It returns whether the load has a slot left.
func (s *Sentinel) putListed(l slotLoad, all []listedDocument, urgency Urgency) (current bool) {
	now := time.Now()
	for i := range s.slots {
		current = current || s.slots[i].epoch == l.epoch
	}
	for _, x := range all {
		if s.slots[x.slot].epoch != l.epoch || s.removedDuringLoad[x.key] >= x.change.Version {
			continue
		}
		r := s.table.getOrAdd(x.key, x.slot)
		s.table.setOwner(r, x.owner)
		if x.unsent {
			s.table.setState(r, s.policy.ApplyUnsent(r.State, x.change, urgency, now))
		} else {
			s.table.setState(r, s.policy.ApplyListed(r.State, x.change, x.after, now))
		}
	}
	return current
}
