package sentinel

import (
	"context"
	"errors"
	"time"
)

// Publication describes the last event of a resource that the broker acknowledged.
type Publication struct {
	Generation int64     // the resource's at that time; 0: no event yet
	At         time.Time // when the broker acknowledged it
	Attempts   int       // events since the resource made progress
}

// evaluation evaluates the rules for one resource and its last event, at one or more times. It keeps the values of the
// parameters that do not depend on now.
type evaluation struct {
	rules  *Rules
	vars   map[string]any
	latest time.Time // the last activity
}

// newEvaluation returns an evaluation, with the values of the parameters that do not depend on now.
func (r *Rules) newEvaluation(ctx context.Context, f Facts, t Publication) (evaluation, error) {
	q := evaluation{rules: r, latest: f.lastReport}
	if t.At.After(q.latest) {
		q.latest = t.At
	}
	q.vars = map[string]any{
		"resource": f.resource, "conditions": f.conditions, "last_activity": q.latest,
		"event": map[string]any{"generation": t.Generation, "time": t.At, "attempts": int64(t.Attempts)},
	}
	return q, r.timelessParams.EvalInto(ctx, q.vars)
}

// decide reports whether the resource needs an event at a time.
func (q evaluation) decide(ctx context.Context, now time.Time) (bool, error) {
	q.vars["now"] = now
	if err := q.rules.timedParams.EvalInto(ctx, q.vars); err != nil {
		return false, err
	}
	out, err := q.rules.result.Eval(ctx, q.vars)
	if err != nil {
		return false, err
	}
	return out.Value == true, nil
}

// Decide reports whether a resource needs an event.
func (r *Rules) Decide(ctx context.Context, f Facts, t Publication, now time.Time) (bool, error) {
	q, err := r.newEvaluation(ctx, f, t)
	if err != nil {
		return false, err
	}
	return q.decide(ctx, now)
}

// The range and the precision of TrueAt.
const (
	maxLookAhead   = 24 * time.Hour
	firstStep      = time.Second
	minPrecision   = 50 * time.Millisecond
	precisionShare = 64 // of the time from now to the result
)

// TrueAt returns the time at which a decision that is false now becomes true if the resource does not change. The
// result is late by at most 1/32 of the time until then, or by 50 ms. TrueAt searches one day ahead: for a decision
// that becomes true later, or never, it returns the end of that day, when the caller calls it again. For expressions
// without now it returns the zero time: never.
func (r *Rules) TrueAt(ctx context.Context, f Facts, t Publication, now time.Time) (time.Time, error) {
	q, err := r.newEvaluation(ctx, f, t)
	if err != nil && r.isTimed {
		return now.Add(maxLookAhead), err
	}
	return q.trueAt(ctx, now)
}

// trueAt is TrueAt for the resource of the evaluation.
func (q evaluation) trueAt(ctx context.Context, now time.Time) (time.Time, error) {
	r := q.rules
	if !r.isTimed {
		return time.Time{}, nil
	}
	var failed error
	wantedAt := func(when time.Time) bool {
		wanted, err := q.decide(ctx, when)
		failed = errors.Join(failed, err)
		return wanted
	}
	// Try first the distance from the last activity that the previous search found: it is right for most resources.
	if d := time.Duration(r.lastDistance.Load()); d > 0 {
		guess := q.latest.Add(d)
		if before := guess.Add(-d / 32); before.After(now) && !wantedAt(before) && wantedAt(guess) && failed == nil {
			return guess, nil
		}
	}
	low, high := time.Duration(0), firstStep
	for !wantedAt(now.Add(high)) {
		if failed != nil || high >= maxLookAhead {
			return now.Add(maxLookAhead), failed
		}
		low, high = high, min(2*high, maxLookAhead)
	}
	for high-low > max(high/precisionShare, minPrecision) && failed == nil {
		if middle := low + (high-low)/2; wantedAt(now.Add(middle)) {
			high = middle
		} else {
			low = middle
		}
	}
	r.lastDistance.Store(int64(now.Add(high).Sub(q.latest)))
	return now.Add(high), failed
}
