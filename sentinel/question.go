package sentinel

import (
	"context"
	"errors"
	"time"
)

// Publication describes the last event of a resource that the broker took.
type Publication struct {
	Generation int64     // the resource's at that time; 0: no event yet
	At         time.Time // when the broker took it
	Attempts   int       // events since the resource made progress
}

// question is one resource and its last event, about which the expressions decide for one or more times.
// It has the values of the parameters that do not depend on now.
type question struct {
	rules  *Rules
	vars   map[string]any
	latest time.Time // the last activity
}

// ask evaluates the parameters that do not depend on now.
func (r *Rules) ask(ctx context.Context, f Facts, t Publication) (question, error) {
	q := question{rules: r, latest: f.reported}
	if t.At.After(q.latest) {
		q.latest = t.At
	}
	q.vars = map[string]any{
		"resource": f.resource, "conditions": f.conditions, "last_activity": q.latest,
		"event": map[string]any{"generation": t.Generation, "time": t.At, "attempts": int64(t.Attempts)},
	}
	return q, r.fixed.EvalInto(ctx, q.vars)
}

// decide reports whether the resource needs an event at a time.
func (q question) decide(ctx context.Context, now time.Time) (bool, error) {
	q.vars["now"] = now
	if err := q.rules.varying.EvalInto(ctx, q.vars); err != nil {
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
	q, err := r.ask(ctx, f, t)
	if err != nil {
		return false, err
	}
	return q.decide(ctx, now)
}

// How far and how exactly Flip looks ahead.
const (
	flipHorizon = 24 * time.Hour
	flipFirst   = time.Second
	flipExact   = 50 * time.Millisecond
	flipPart    = 64 // of the distance
)

// Flip returns the time at which a decision that is false now becomes true if the resource does not change: at most
// 1/32 of the time until then later, or 50 ms. It searches one day ahead. For a decision that becomes true later,
// or never, it returns the end of that day, when the caller asks again. It returns the zero time, never, for
// expressions without now.
func (r *Rules) Flip(ctx context.Context, f Facts, t Publication, now time.Time) (time.Time, error) {
	q, err := r.ask(ctx, f, t)
	if err != nil && r.timed {
		return now.Add(flipHorizon), err
	}
	return q.flip(ctx, now)
}

func (q question) flip(ctx context.Context, now time.Time) (time.Time, error) {
	r := q.rules
	if !r.timed {
		return time.Time{}, nil
	}
	var failed error
	at := func(when time.Time) bool {
		yes, err := q.decide(ctx, when)
		failed = errors.Join(failed, err)
		return yes
	}
	// For most resources the time from the last activity is the same as for the resource before.
	if d := time.Duration(r.distance.Load()); d > 0 {
		guess := q.latest.Add(d)
		if before := guess.Add(-d / 32); before.After(now) && !at(before) && at(guess) && failed == nil {
			return guess, nil
		}
	}
	low, high := time.Duration(0), flipFirst
	for !at(now.Add(high)) {
		if failed != nil || high >= flipHorizon {
			return now.Add(flipHorizon), failed
		}
		low, high = high, min(2*high, flipHorizon)
	}
	for high-low > max(high/flipPart, flipExact) && failed == nil {
		if middle := low + (high-low)/2; at(now.Add(middle)) {
			high = middle
		} else {
			low = middle
		}
	}
	r.distance.Store(int64(now.Add(high).Sub(q.latest)))
	return now.Add(high), failed
}
