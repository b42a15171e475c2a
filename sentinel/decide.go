package sentinel

import (
	"context"
	"errors"
	"time"

	"atoll.dev/store"
)

// maxIdle is how long the loop waits at most.
const maxIdle = time.Minute

// decideDue decides on the due resources, within the limits of work in flight, and returns how long the loop may wait
// until the next one. If the table has no document of a resource, readDue reads it first.
func (s *Sentinel) decideDue(ctx context.Context, now time.Time) time.Duration {
	at := instantOf(now)
	var batch []key
	defer func() {
		if len(batch) > 0 {
			s.isReading = true
			s.toRead <- batch
		}
	}()
	for s.connected && s.inFlight < maxInFlight && ctx.Err() == nil {
		r, wait := s.nextDue(at, now)
		if r == nil {
			return wait
		}
		if r.document != nil {
			s.decide(ctx, r, r.document, now)
			continue
		}
		if s.isReading || len(batch) == maxReadBatch {
			return maxIdle // readDue posts to the mailbox when it is done, which wakes the loop
		}
		r.isReading = true
		s.table.enqueue(r)
		batch = append(batch, r.key)
	}
	return maxIdle
}

// nextDue returns the resource to decide on next, or nil and the time until one is due. Urgent
// resources come first; routineLimit limits the others.
func (s *Sentinel) nextDue(at instant, now time.Time) (*resource, time.Duration) {
	wait := maxIdle
	for _, q := range []*queue{&s.table.urgent, &s.table.routine} {
		if len(*q) == 0 {
			continue
		}
		r := (*q)[0]
		until := time.Duration(r.Due-at) * time.Microsecond
		if until <= 0 {
			// A resource that must wait for readDue uses no token of the limit.
			if q == &s.table.urgent || s.isReading && r.document == nil || s.routineLimit.AllowN(now, 1) {
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
	d := s.watched[r.kind]
	var changedAt time.Time
	if r.document == doc { // the table kept it when the feed had its change
		changedAt = doc.UpdatedAt
	}
	state := r.State
	state.Generation = max(state.Generation, doc.Generation) // a document from the database may be ahead of the feed
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
		s.metrics.countSkipped(d, reasonError)
		if s.warnLimit.Allow() {
			s.log.Warn("the rules failed for a resource; the sentinel decides again later", "kind", r.kind,
				"id", r.id, "error", err)
		}
	}
	next, send := s.policy.ApplyVerdict(state, v, now)
	s.table.releaseDocument(r)
	s.table.setState(r, next)
	switch {
	case send:
		reason := reasonMatched
		if !v.Wanted {
			reason = reasonRequested
		}
		s.enqueueEvent(ctx, r, doc, f, reason, changedAt)
	case !v.Failed:
		s.metrics.countSkipped(d, reasonFalse)
	}
}

// verdict evaluates the rules for a state, and for the state after an event.
func (r *Rules) verdict(ctx context.Context, f Facts, s State, now time.Time) (v Verdict, err error) {
	last := Publication{s.Published, s.PublishedAt.time(), int(s.Attempts)}
	q, err := r.newEvaluation(ctx, f, last)
	if err != nil {
		return v, err
	}
	if v.Wanted, err = q.decide(ctx, now); err != nil {
		return v, err
	}
	var flip time.Time
	if !v.Wanted && !s.Requested {
		flip, err = q.trueAt(ctx, now)
		v.TrueAt = instantOf(flip)
		return v, err
	}
	last = Publication{s.Generation, now, last.Attempts + 1}
	if q, err = r.newEvaluation(ctx, f, last); err == nil {
		v.After.Wanted, err = q.decide(ctx, now)
	}
	if err == nil && !v.After.Wanted {
		flip, err = q.trueAt(ctx, now)
		v.After.TrueAt = instantOf(flip)
	}
	if err != nil { // the event is sent, and the resource is due again with back-off
		v.After, err = NextDecision{Wanted: true}, nil
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
		case keys = <-s.toRead:
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
	s.isReading = false
	now := time.Now()
	if err != nil && !errors.Is(err, context.Canceled) {
		if s.warnLimit.Allow() { // a batch fails every few milliseconds while the database is down
			s.log.Warn("the sentinel cannot read due resources; it tries again", "error", err)
		}
		for _, d := range s.watched {
			s.metrics.apiErrors.WithLabelValues(d.labels[0], d.labels[1], "fetch_error").Inc()
		}
	}
	for _, k := range keys {
		r := s.table.all[k]
		if r == nil || !r.isReading {
			continue
		}
		r.isReading = false
		doc := found[k]
		if r.document != nil && (doc == nil || doc.Version < r.document.Version) {
			doc = r.document
		}
		switch {
		case doc != nil && doc.Version >= r.Version && s.connected && ctx.Err() == nil:
			s.decide(ctx, r, doc, now)
		case doc != nil:
			// The resource is due when the broker is connected again, or at once if it has changed since.
			s.table.setState(r, r.State)
		default: // the document was removed, and the feed has that later; or the database is down
			state := r.State
			state.Due = instantOf(now.Add(s.policy.MinRetry))
			s.table.setState(r, state)
		}
	}
}
