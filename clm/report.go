package clm

import (
	"context"
	"errors"
	"time"

	"atoll.dev/clm/status"
	"atoll.dev/store"
)

// applyReport stores an adapter's report, and removes the resource if the report completes
// its deletion. A report that changes nothing is answered without a write.
func (s *Server) applyReport(ctx context.Context, a address, ifVersion int64, r status.Report, tie status.Tie) (
	out reported, err error) {
	now := time.Now().UTC().Truncate(time.Microsecond)
	d, err := s.store.Get(ctx, a.entity.storeKind(), a.id)
	if errors.Is(err, store.ErrNotFound) {
		return out, missing(a.entity, a.id)
	}
	if err != nil {
		return out, err
	}
	if err := decode(&d); err != nil {
		return out, err
	}
	if err := a.admits(ctx, d); err != nil {
		return out, err
	}
	if d.DeletedAt != nil {
		return s.applyReportToDeleting(ctx, a, d, ifVersion, r, tie, now)
	}
	if err := checkVersion(d, ifVersion); err != nil {
		return out, err
	}
	// A report that changes nothing needs no write.
	next := d
	if out, err = a.entity.applyReport(&next, r, tie, status.NoChildren, now); err != nil || out.verdict == status.Discarded ||
		out.verdict == status.Repeated {
		return out, err
	}
	_, _, err = s.store.UpdateFrom(ctx, d, func(latest *store.Document) (err error) {
		switch {
		case latest.SameState(d):
			*latest = next
		case latest.DeletedAt != nil:
			return errNeedsTransaction
		default:
			if err := checkVersion(*latest, ifVersion); err != nil {
				return err
			}
			out, err = a.entity.applyReport(latest, r, tie, status.NoChildren, now)
		}
		return err
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return out, missing(a.entity, a.id)
	case errors.Is(err, errNeedsTransaction):
		return s.applyReportToDeleting(ctx, a, d, ifVersion, r, tie, now)
	}
	return out, err
}

// applyReportToDeleting stores a report on a resource that is being deleted; read is the
// document before the transaction. If the report completes the deletion, it removes the
// resource, and its owners whose deletion waited only for it.
func (s *Server) applyReportToDeleting(ctx context.Context, a address, read store.Document, ifVersion int64,
	r status.Report, tie status.Tie, now time.Time) (out reported, err error) {
	// Adapters often report the end of all children of one owner at once. The requests wait here for their turn;
	// waiting for the owner's row lock would use up the connections.
	kind, id := a.entity.storeKind(), a.id
	if a.entity.parent != nil {
		kind, id = a.entity.parent.storeKind(), read.Scope
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
		if err := checkVersion(d, ifVersion); err != nil {
			return err
		}
		children, err := s.childrenOf(ctx, tx, a.entity, a.id)
		if err != nil {
			return err
		}
		d, _, err = tx.Update(ctx, a.entity.storeKind(), a.id, 0, func(d *store.Document) (err error) {
			out, err = a.entity.applyReport(d, r, tie, children, now)
			return err
		})
		if err != nil || !out.done {
			return err
		}
		return s.remove(ctx, tx, a.entity, d)
	})
	return out, err
}

// childrenOf tells whether a resource has children.
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
