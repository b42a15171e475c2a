package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// goal is what a call of update does with a stored document: it changes or removes it.
type goal uint8

// The goals of update.
const (
	modify goal = iota
	remove
)

// change applies f to a copy of cur and composes the write of the difference, or of the removal; f is
// nil for a removal. Without a difference the write is empty. changed is false without a difference,
// or if only times of observation differ.
func (k *KindSpec) change(ctx context.Context, cur Document, token int64, goal goal, f func(*Document) error) (
	next Document, w write, changed bool, err error) {
	if k.Decode != nil && f != nil {
		if err := k.Decode(&cur); err != nil {
			return cur, w, false, err
		}
	}
	next = cur
	if f != nil {
		if err := f(&next); err != nil {
			return cur, w, false, err
		}
	}
	if err := k.checkPartial(ctx, cur, next, goal); err != nil {
		return cur, w, false, err
	}
	switch {
	case next.Scope != cur.Scope || next.Name != cur.Name || next.ID != cur.ID || next.Kind != cur.Kind:
		return cur, w, false, fmt.Errorf("%w: kind, id, scope and name do not change", ErrInvalid)
	case cur.DeletedAt != nil:
		next.DeletedAt = cur.DeletedAt // a requested deletion keeps its time and cannot be taken back
	case next.DeletedAt != nil:
		t := next.DeletedAt.UTC().Truncate(time.Microsecond)
		next.DeletedAt = &t
	}
	var spec, status json.RawMessage
	if !cur.isPartial {
		equal, err := k.sameSpec(cur, next)
		if err != nil {
			return cur, w, false, err
		}
		if !equal {
			spec = next.Spec
		}
	}
	difference, err := k.difference(cur, next)
	if err != nil {
		return cur, w, false, err
	}
	if difference != Equal {
		status = next.Status
	}
	deleting := next.DeletedAt != nil && cur.DeletedAt == nil
	if spec == nil && status == nil && !deleting && goal == modify {
		return cur, w, false, nil
	}
	if spec == nil && !deleting && goal == modify && difference == ObservedLater {
		w, ok, err := k.composeShort(&next, cur, token)
		if err == nil && !ok {
			w, err = k.composeObservation(&next, cur, token)
		}
		return next, w, false, err
	}
	action := "update"
	switch {
	case goal == remove:
		action = "remove"
	case deleting:
		action = "delete"
	}
	requested := next.Generation
	next.Version, next.Generation = cur.Version+1, cur.Generation
	if spec != nil {
		next.Generation = max(cur.Generation+1, requested)
	}
	next.CreatedAt = cur.CreatedAt
	if spec != nil {
		if next.sealed, err = k.resealSpec(cur, next); err != nil {
			return cur, w, false, err
		}
	}
	next.UpdatedAt, next.Removed, next.token = timeAfter(cur.UpdatedAt), goal == remove, token
	if spec == nil && !deleting && goal == modify {
		err = k.renderStatus(&next, cur)
	} else {
		err = k.render(&next)
	}
	if err != nil {
		return cur, w, false, err
	}
	statement := updateStatement
	if goal == remove {
		statement = removeStatement
	}
	recorded := status
	if status != nil && k.Recorded != nil {
		recorded = k.Recorded(cur, next)
	}
	if next.observation = nil; status == nil && cur.observation != nil {
		status = next.Status // the stored one lacks the times
	}
	w, err = k.composeRecorded(ctx, statement, &cur, next, spec, status, recorded, token, action,
		next.DeletedAt, cur.Version, cur.token, changedHead(cur, next), k.changedFacets(cur, next))
	if err != nil {
		return cur, w, false, err
	}
	return next, w, true, nil
}

// sameSpec compares the specs of two states of a document.
func (k *KindSpec) sameSpec(cur, next Document) (bool, error) {
	if k.SameSpec != nil {
		return k.SameSpec(cur, next)
	}
	return SameJSON(cur.Spec, next.Spec)
}

// difference compares the statuses of two states of a document.
func (k *KindSpec) difference(cur, next Document) (Difference, error) {
	if k.Compare != nil {
		return k.Compare(cur, next), nil
	}
	equal, err := SameJSON(cur.Status, next.Status)
	switch {
	case err != nil:
		return Different, err
	case equal:
		return Equal, nil
	case k.Observed != nil && k.Observed(cur.Status, next.Status):
		return ObservedLater, nil
	}
	return Different, nil
}

// composeObservation composes the write of a status that has only later times of observation: next gets the version of
// cur.
func (k *KindSpec) composeObservation(next *Document, cur Document, token int64) (w write, err error) {
	status, decoded := next.Status, next.Decoded
	*next = cur
	next.Status, next.Decoded, next.token, next.observation = status, decoded, token, nil
	if err := k.renderStatus(next, cur); err != nil {
		return w, err
	}
	searched, detail, err := k.splitStatus(status)
	if err != nil {
		return w, err
	}
	args := []any{string(next.Kind), next.ID, next.Version, jsonArgument(searched), storedWire(*next), token, cur.token,
		changedHead(cur, *next), detail}
	return write{kind: next.Kind, id: next.ID, version: next.Version, isSilent: true, sql: observeStatement, args: args},
		nil
}
