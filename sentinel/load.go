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
		var save saving
		if !s.mail.call(ctx, func() { save = s.cursors(); s.setGauges() }) {
			return
		}
		held, err := s.membership.beat(ctx, save)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !errors.Is(err, errSameName):
			s.log.Warn("the sentinel cannot renew its lease", "error", err)
		default:
			if err != nil {
				s.log.Error("another process has the sentinel's name; give each replica its own", "error", err)
			} else {
				s.alive.Store(time.Now().UnixMicro())
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
	for kind, d := range s.duties {
		c := s.table.count(kind)
		s.metrics.pending.WithLabelValues(d.labels...).Set(float64(c.pending))
		s.metrics.resources.WithLabelValues(d.labels...).Set(float64(c.resources))
		if s.opts.Feed.Check(context.Background()) == nil {
			s.metrics.lastPoll.WithLabelValues(d.labels...).Set(float64(time.Now().UnixMilli()) / 1000)
		}
	}
}

// applyHolding takes over the database's state of this replica's slots: it notes saved cursors,
// drops the resources of lost slots, and begins to read those of new slots.
func (s *Sentinel) applyHolding(saved saving, held holding) {
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

// markLoaded records whether all held slots were read. Then the lists of removed documents and
// waiting requests are not needed any more.
func (s *Sentinel) markLoaded() {
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

// dropSlots removes from the table the resources of slots for which lost is true.
func (s *Sentinel) dropSlots(lost func(slot int) bool) {
	for _, r := range s.table.all {
		if lost(int(r.slot)) {
			s.table.drop(r)
		}
	}
}

// load is one attempt to read the resources of slots.
type load struct {
	epoch   uint64                   // of the slots
	cursors map[store.Cursor][]int32 // the slots by their cursor
}

// loadSlots starts a goroutine that reads the resources of slots.
func (s *Sentinel) loadSlots(fresh []int) {
	s.epoch++
	l := load{epoch: s.epoch, cursors: map[store.Cursor][]int32{}}
	for _, i := range fresh {
		s.slots[i].epoch, s.slots[i].ready = l.epoch, false
		l.cursors[s.slots[i].cursor] = append(l.cursors[s.slots[i].cursor], int32(i))
	}
	s.loaded.Store(false)
	s.start(func(ctx context.Context) { s.retryLoad(ctx, l) })
}

// retryLoad reads slots, and tries again after an error, until they are read or another
// replica has all of them.
func (s *Sentinel) retryLoad(ctx context.Context, l load) {
	for {
		err := s.tryLoad(ctx, l)
		if err == nil || errors.Is(err, errLost) || ctx.Err() != nil {
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

// errLost ends the reading of slots that another replica has, or that a later load reads.
var errLost = errors.New("the slots were lost")

// tryLoad lists first the documents after the slots' cursors, called unseen, which are urgent; then all
// documents; then the documents that have changed since base. The feed brings changes that happen during
// the lists. But the list of all documents may show a new document before the feed brings it, and counts
// it as old; the last list corrects that. Without a cursor all documents are unseen.
//
// The sentinel decides once on a document that does not change meanwhile: the first lists contain all changes
// before base, which the last list leaves out, and putSeen leaves out the versions that are in the table.
func (s *Sentinel) tryLoad(ctx context.Context, l load) error {
	base, err := s.store.CurrentCursor(ctx)
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
				return s.putSeen(ctx, l, docs)
			}); err != nil {
				return err
			}
		}
		if err := s.loadUnseen(ctx, l, base, known); err != nil {
			return err
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
			s.applyRequest(req, mine, 1, time.Now())
		}
		s.markLoaded()
	})
	return nil
}

// inSlots returns the condition that a document is in some slots. For all slots it
// returns none: PostgreSQL would estimate that the condition leaves next to nothing, and
// sort instead of using the index.
func inSlots(in []int32) store.Fragment {
	if len(in) == slots {
		return store.Fragment{}
	}
	return store.Fragment{SQL: slotSQL + " = any($1)", Args: []any{in}}
}

// maxPage bounds the bytes of documents in one page.
const maxPage = 8 << 20

// pages lists documents page by page, because a statement has a time limit. It reads the next page while each
// handles a page. It stops with errLost when each returns false.
func (s *Sentinel) pages(ctx context.Context, q store.Query, each func([]store.Document) bool) error {
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	q.Deletion, q.Limit, q.Bytes = store.WithDeleting, 1000, maxPage
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
			<-answers // of the page that nobody needs
		}
		if !current {
			return cmp.Or(context.Cause(ctx), errLost)
		}
		return a.err
	}
}

// manyUnseen is the number of unseen documents after which further ones are not urgent.
const manyUnseen = 2000

// listed is a document of a list, with the decision about it.
type listed struct {
	key    key
	owner  key
	slot   int
	change Change
	unseen bool // the document lies after the slot's cursor, and the rules want an event
	after  After
}

// decideListed decides on a document of a list. published is the generation of its last event, 0 if there was
// none. The result is false when the sentinel's selector does not match the document.
func (s *Sentinel) decideListed(ctx context.Context, doc *store.Document, published int64,
	now time.Time) (listed, Verdict, bool) {
	s.listDecisions.Add(1)
	d := s.duties[doc.Kind]
	f, err := d.rules.Facts(doc.Wire)
	x := listed{key: key{doc.Kind, doc.ID}, owner: d.owner(doc), slot: slotOf(doc.ID), change: Change{doc.Version,
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

// putSeen puts resources into the table whose events were all sent. It leaves out documents whose version,
// or a newer one, the table has: from the list of unseen documents, or from the feed.
func (s *Sentinel) putSeen(ctx context.Context, l load, docs []store.Document) (current bool) {
	known := make([]bool, len(docs))
	if !s.mail.call(ctx, func() {
		for i := range docs {
			r := s.table.all[key{docs[i].Kind, docs[i].ID}]
			known[i] = r != nil && r.Version >= docs[i].Version
		}
	}) {
		return false
	}
	all := make([]listed, 0, len(docs))
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

// loadUnseen lists the documents and requests after a cursor of slots. It lists kind by
// kind, in the order of an index.
func (s *Sentinel) loadUnseen(ctx context.Context, l load, cursor store.Cursor, in []int32) error {
	count := 0
	each := func(docs []store.Document) bool {
		count += len(docs)
		return s.putUnseen(ctx, l, Urgency(cursor != "" && count <= manyUnseen), docs)
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

// putUnseen puts resources into the table whose last event may not have been sent.
func (s *Sentinel) putUnseen(ctx context.Context, l load, urgency Urgency, docs []store.Document) (current bool) {
	var all []listed
	var requests []request
	now := time.Now()
	for i := range docs {
		if s.duties[docs[i].Kind] == nil {
			if req, err := readRequest(docs[i].Spec); err == nil {
				requests = append(requests, req)
			}
		} else if x, v, ours := s.decideListed(ctx, &docs[i], 0, now); ours {
			x.unseen = v.Wanted
			all = append(all, x)
		}
	}
	return s.mail.call(ctx, func() {
		current = s.putListed(l, all, urgency)
		for _, req := range requests {
			if !slices.Contains(s.waiting, req) {
				s.waiting = append(s.waiting, req) // until the slots are read
			}
		}
	}) && current
}

// putListed puts documents of a list into the table. It returns whether the load still
// has a slot to read.
func (s *Sentinel) putListed(l load, all []listed, urgency Urgency) (current bool) {
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
		if x.unseen {
			s.table.put(r, s.policy.ApplyUnseen(r.State, x.change, urgency, now))
		} else {
			s.table.put(r, s.policy.ApplyListed(r.State, x.change, x.after, now))
		}
	}
	return current
}
