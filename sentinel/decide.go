package sentinel

import (
	"context"
	"errors"
	"time"

	"atoll.dev/store"
)

// idle is how long the loop waits when nothing is due.
const idle = time.Minute

// decideDue decides on all due resources, as far as limits permit, and returns how long the loop may wait for
// the next due resource. A resource without a held document goes to readDue first.
func (s *Sentinel) decideDue(ctx context.Context, now time.Time) time.Duration {
	at := instantOf(now)
	var batch []key
	defer func() {
		if len(batch) > 0 {
			s.reading = true
			s.read <- batch
		}
	}()
	for s.up && s.sending < maxSending && ctx.Err() == nil {
		r, wait := s.nextDue(at, now)
		if r == nil {
			return wait
		}
		if r.held != nil {
			s.decide(ctx, r, r.held, now)
			continue
		}
		if s.reading || len(batch) == maxReading {
			return idle // readDue posts to the mailbox when it is done, which wakes the loop
		}
		r.reading = true
		s.table.enqueue(r)
		batch = append(batch, r.key)
	}
	return idle
}

// nextDue returns the resource to decide on next, or nil and the time until one is due. Urgent
// resources come first; routine ones come at the pace.
func (s *Sentinel) nextDue(at instant, now time.Time) (*resource, time.Duration) {
	wait := idle
	for _, q := range []*queue{&s.table.urgent, &s.table.routine} {
		if len(*q) == 0 {
			continue
		}
		r := (*q)[0]
		until := time.Duration(r.Due-at) * time.Microsecond
		if until <= 0 {
			// A resource that must wait for readDue uses nothing of the pace.
			if q == &s.table.urgent || s.reading && r.held == nil || s.pace.AllowN(now, 1) {
				return r, 0
			}
			until = time.Duration(float64(time.Second) / s.opts.Pace)
		}
		wait = min(wait, until)
	}
	return nil, max(wait, time.Millisecond/2)
}

// decide evaluates the rules for a resource with its document, and sends an event if they want one.
func (s *Sentinel) decide(ctx context.Context, r *resource, doc *store.Document, now time.Time) {
	d := s.duties[r.kind]
	var changedAt time.Time
	if r.held == doc { // the feed brought the document just now
		changedAt = doc.UpdatedAt
	}
	state := r.State
	state.Generation = max(state.Generation, doc.Generation) // a document read just now may be ahead of the feed
	f, err := d.rules.Facts(doc.Wire)
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
			s.log.Warn("the rules failed for a resource; the sentinel decides again later", "kind", r.kind,
				"id", r.id, "error", err)
		}
	}
	next, send := s.policy.ApplyVerdict(state, v, now)
	s.table.release(r)
	s.table.put(r, next)
	switch {
	case send:
		reason := reasonMatched
		if !v.Wanted {
			reason = reasonAsked
		}
		s.enqueueEvent(ctx, r, doc, f, reason, changedAt)
	case !v.Failed:
		s.metrics.skippedOne(d, reasonFalse)
	}
}

// verdict evaluates the rules for a state, and for the state after an event.
func (r *Rules) verdict(ctx context.Context, f Facts, s State, now time.Time) (v Verdict, err error) {
	last := Publication{s.Published, s.PublishedAt.time(), int(s.Attempts)}
	q, err := r.ask(ctx, f, last)
	if err != nil {
		return v, err
	}
	if v.Wanted, err = q.decide(ctx, now); err != nil {
		return v, err
	}
	var flip time.Time
	if !v.Wanted && !s.Forced {
		flip, err = q.flip(ctx, now)
		v.Flip = instantOf(flip)
		return v, err
	}
	last = Publication{s.Generation, now, last.Attempts + 1}
	if q, err = r.ask(ctx, f, last); err == nil {
		v.After.Wanted, err = q.decide(ctx, now)
	}
	if err == nil && !v.After.Wanted {
		flip, err = q.flip(ctx, now)
		v.After.Flip = instantOf(flip)
	}
	if err != nil { // the event is sent, and the resource is due again with back-off
		v.After, err = After{Wanted: true}, nil
	}
	return v, err
}

// readDue reads the documents of due resources, batch by batch, until ctx ends.
func (s *Sentinel) readDue(ctx context.Context) {
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
		s.mail.post(func() { s.decideRead(ctx, keys, found, err) })
	}
}

// decideRead decides on the resources whose documents readDue has read.
func (s *Sentinel) decideRead(ctx context.Context, keys []key, found map[key]*store.Document, err error) {
	s.reading = false
	now := time.Now()
	if err != nil && !errors.Is(err, context.Canceled) {
		if s.badLog.Allow() { // a batch fails every few milliseconds while the database is down
			s.log.Warn("the sentinel cannot read due resources; it tries again", "error", err)
		}
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
			// The resource is due when the broker is connected again, or at once if it has changed since.
			s.table.put(r, r.State)
		default: // the document was removed, and the feed brings that later; or the database is down
			state := r.State
			state.Due = instantOf(now.Add(s.policy.MinRetry))
			s.table.put(r, state)
		}
	}
}
