package clm

import (
	"context"
	"errors"
	"time"

	"atoll.dev/clm/status"
	"atoll.dev/store"
)

// receivedReport is the request of a PUT of a report.
type receivedReport struct {
	address
	ifVersion int64
	report    status.Report
	tie       status.Tie
	at        time.Time // when the server received it
}

// applyReport stores an adapter's report, and removes the resource if the report completes
// its deletion. A report that changes nothing is answered without a write.
//
// If this server remembers the resource, the report is one statement, which writes if the
// resource still has the remembered state. Otherwise, and for each answer without a write,
// the server reads the resource first.
func (s *Server) applyReport(ctx context.Context, a address, ifVersion int64, r status.Report, tie status.Tie) (
	out reported, err error) {
	received := &receivedReport{a, ifVersion, r, tie, time.Now().UTC().Truncate(time.Microsecond)}
	kind := a.entity.storeKind()
	d, isRemembered := s.recent.get(kind, a.id)
	var next store.Document
	if isRemembered {
		next, out, err = received.judge(ctx, d)
		isRemembered = err == nil && out.isStored()
	}
	if !isRemembered {
		d, err = s.readForReport(ctx, a)
		if errors.Is(err, store.ErrNotFound) {
			return reported{}, missing(a.entity, a.id)
		}
		if err != nil {
			return reported{}, err
		}
		next, out, err = received.judge(ctx, d)
		if errors.Is(err, errNeedsTransaction) {
			return s.applyReportToDeleting(ctx, received, d.Scope)
		}
		if err != nil || !out.isStored() {
			return out, err
		}
	}
	judged := 0
	stored, _, err := s.store.UpdateFrom(ctx, d, func(latest *store.Document) (err error) {
		if judged++; latest.SameState(d) && latest.IsPartial() == d.IsPartial() {
			*latest = next
			return nil
		}
		*latest, out, err = received.judge(ctx, *latest)
		return err
	})
	if err != nil {
		s.recent.forget(kind, a.id)
	} else {
		s.recent.put(stored)
	}
	switch {
	case isRemembered && judged > 1:
		s.recent.recordStale()
	case isRemembered && err == nil:
		s.recent.recordCurrent()
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return out, missing(a.entity, a.id)
	case errors.Is(err, errNeedsTransaction):
		return s.applyReportToDeleting(ctx, received, d.Scope)
	}
	return out, err
}

// readForReport reads a resource for a report, and decodes it for judge and for the comparison with
// the result. It reads only the status where that is enough: computed conditions (Entity.mapper) may
// depend on the whole spec.
func (s *Server) readForReport(ctx context.Context, a address) (d store.Document, err error) {
	if a.entity.mapper.Empty() {
		d, err = s.store.GetStatus(ctx, a.entity.storeKind(), a.id)
		if err != nil || decode(&d) == nil {
			return d, err
		}
	}
	if d, err = s.store.Get(ctx, a.entity.storeKind(), a.id); err == nil {
		err = decode(&d)
	}
	return d, err
}

// judge applies the report to a state of its resource; it changes nothing else. It returns
// errNeedsTransaction for a resource that is being deleted. It is an error if the caller may
// not see the resource, or if the report requires another version.
func (received *receivedReport) judge(ctx context.Context, d store.Document) (next store.Document, out reported,
	err error) {
	if err := decode(&d); err != nil {
		return d, out, err
	}
	if err := received.admits(ctx, d); err != nil {
		return d, out, err
	}
	if d.DeletedAt != nil {
		return d, out, errNeedsTransaction
	}
	if err := checkVersion(d, received.ifVersion); err != nil {
		return d, out, err
	}
	out, err = received.entity.applyReport(&d, received.report, received.tie, status.NoChildren, received.at)
	return d, out, err
}

// applyReportToDeleting stores a report on a resource that is being deleted; scope is the
// resource's. If the report completes the deletion, it removes the resource, and its owners
// whose deletion waited only for it.
func (s *Server) applyReportToDeleting(ctx context.Context, received *receivedReport, scope string) (out reported,
	err error) {
	a := received.address
	// Adapters often report the end of all children of one owner at once. The requests wait here for their turn;
	// waiting for the owner's row lock would use up the connections.
	kind, id := a.entity.storeKind(), a.id
	if a.entity.parent != nil {
		kind, id = a.entity.parent.storeKind(), scope
	}
	release, err := s.store.WaitTurn(ctx, kind, id)
	if err != nil {
		return out, err
	}
	defer release()
	err = s.store.Tx(ctx, func(tx *store.Tx) error {
		d, err := tx.Get(ctx, a.entity.storeKind(), a.id)
		if errors.Is(err, store.ErrNotFound) {
			return missing(a.entity, a.id)
		}
		if err != nil {
			return err
		}
		if err := s.lockOwners(ctx, tx, d); err != nil {
			return err
		}
		// Before the lock, another process may have removed the last child, when this report was still missing.
		if d, err = s.lock(ctx, tx, a); err != nil {
			return err
		}
		if err := checkVersion(d, received.ifVersion); err != nil {
			return err
		}
		children, err := s.childrenOf(ctx, tx, a.entity, a.id)
		if err != nil {
			return err
		}
		d, _, err = tx.Update(ctx, a.entity.storeKind(), a.id, 0, func(d *store.Document) (err error) {
			out, err = a.entity.applyReport(d, received.report, received.tie, children, received.at)
			return err
		})
		if err != nil || !out.done {
			return err
		}
		return s.remove(ctx, tx, a.entity, d)
	})
	return out, err
}

// childrenOf reports whether a resource has children.
func (s *Server) childrenOf(ctx context.Context, tx *store.Tx, e *Entity, id string) (status.Children, error) {
	for _, kind := range e.children {
		docs, err := tx.ListScope(ctx, kind.storeKind(), id)
		if err != nil {
			return status.NoChildren, err
		}
		if len(docs) > 0 {
			return status.HasChildren, nil
		}
	}
	return status.NoChildren, nil
}

// remove removes a resource, and its owners whose deletion waited only for it.
func (s *Server) remove(ctx context.Context, tx *store.Tx, e *Entity, d store.Document) error {
	if err := tx.Remove(ctx, e.storeKind(), d.ID, 0); err != nil {
		return err
	}
	if err := replaceReferences(ctx, tx, d.ID, nil); err != nil {
		return err
	}
	spec, err := declaredOf(d)
	if err != nil || spec.Owner == nil {
		return err
	}
	return s.updateOwner(ctx, tx, e.parent, spec.Owner.ID)
}

// updateOwner computes the conditions of an owner that is being deleted after the removal
// of a child, and removes the owner if its deletion is complete. It does nothing for an
// owner that is not being deleted.
func (s *Server) updateOwner(ctx context.Context, tx *store.Tx, owner *Entity, id string) error {
	d, err := tx.GetForUpdate(ctx, owner.storeKind(), id)
	if errors.Is(err, store.ErrNotFound) || err == nil && d.DeletedAt == nil {
		return nil
	}
	if err != nil {
		return err
	}
	children, err := s.childrenOf(ctx, tx, owner, id)
	if err != nil {
		return err
	}
	done := false
	if d, _, err = tx.Update(ctx, owner.storeKind(), id, 0, func(d *store.Document) (err error) {
		done, err = owner.applyChildRemoval(d, children)
		return err
	}); err != nil || !done {
		return err
	}
	return s.remove(ctx, tx, owner, d)
}
