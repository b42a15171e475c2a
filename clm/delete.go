package clm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"atoll.dev/clm/status"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// family is a resource with all resources below it, read under the lock of its root.
type family struct {
	entity   *Entity
	doc      store.Document
	children []*family
}

// lockFamily locks a resource and all resources below it, owners first.
func (s *Server) lockFamily(ctx context.Context, tx *store.Tx, e *Entity, d store.Document) (*family, error) {
	f := &family{entity: e, doc: d}
	for _, kind := range e.children {
		docs, err := tx.ListScope(ctx, kind.storeKind(), d.ID)
		if err != nil {
			return nil, err
		}
		for _, child := range docs {
			child, err := tx.GetForUpdate(ctx, kind.storeKind(), child.ID)
			if errors.Is(err, store.ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			below, err := s.lockFamily(ctx, tx, kind, child)
			if err != nil {
				return nil, err
			}
			f.children = append(f.children, below)
		}
	}
	return f, nil
}

// ids returns the ids of all members, the root first.
func (f *family) ids() []string {
	ids := []string{f.doc.ID}
	for _, child := range f.children {
		ids = append(ids, child.ids()...)
	}
	return ids
}

// restricted returns a member that forbids the deletion of its owner, nil if there is
// none. A member that is being deleted already does not forbid it.
func (f *family) restricted() *family {
	for _, child := range f.children {
		if child.entity.OnParentDelete == Restrict && child.doc.DeletedAt == nil {
			return child
		}
		if r := child.restricted(); r != nil {
			return r
		}
	}
	return nil
}

// lockFamilyAt locks the family at an address; its owners first.
func (s *Server) lockFamilyAt(ctx context.Context, tx *store.Tx, a address) (*family, error) {
	d, err := tx.Get(ctx, a.entity.storeKind(), a.id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, missing(a.entity, a.id)
	}
	if err != nil {
		return nil, err
	}
	if err := s.lockOwners(ctx, tx, d); err != nil {
		return nil, err
	}
	if d, err = s.lock(ctx, tx, a); err != nil {
		return nil, err
	}
	return s.lockFamily(ctx, tx, a.entity, d)
}

// deleteResource marks a resource and the resources below it as deleted. It removes at
// once those without required adapters and without remaining children. A repeated call
// only moves updated_time.
func (s *Server) deleteResource(ctx context.Context, a address, ifVersion int64) (d store.Document, err error) {
	by, now := authorOf(ctx), time.Now().UTC().Truncate(time.Microsecond)
	var deleted *family
	err = s.store.Tx(ctx, func(tx *store.Tx) error {
		f, err := s.lockFamilyAt(ctx, tx, a)
		if err != nil {
			return err
		}
		d = f.doc
		if err := checkVersion(d, ifVersion); err != nil {
			return err
		}
		if d.DeletedAt != nil {
			d, err = repeatDeletions(ctx, tx, f, now)
			return err
		}
		if r := f.restricted(); r != nil {
			return rest.Errorf(http.StatusConflict, codeState, "%s %s still has %s %s; delete that first",
				a.entity.Kind, a.id, r.entity.Kind, r.doc.ID)
		}
		if err := checkUnreferenced(ctx, tx, a, f); err != nil {
			return err
		}
		if s.opts.Extension != nil {
			if err := s.opts.Extension.Needed(ctx, tx, d); err != nil {
				return err
			}
		}
		removed, err := s.markFamilyDeleted(ctx, tx, f, by, now)
		if err != nil {
			return err
		}
		d, deleted = f.doc, f
		if !removed || a.entity.parent == nil {
			return nil
		}
		return s.updateOwner(ctx, tx, a.entity.parent, d.Scope)
	})
	if err == nil {
		s.metrics.family(deleted, now)
	}
	return d, err
}

// repeatDeletions records a repeated DELETE in a resource, which it returns, and in the children that were
// deleted with it.
func repeatDeletions(ctx context.Context, tx *store.Tx, f *family, now time.Time) (store.Document, error) {
	for _, child := range f.children {
		if child.entity.OnParentDelete != Cascade {
			continue
		}
		if _, err := repeatDeletions(ctx, tx, child, now); err != nil {
			return f.doc, err
		}
	}
	d, _, err := tx.Update(ctx, f.entity.storeKind(), f.doc.ID, 0, func(d *store.Document) error {
		return f.entity.repeatDeletion(d, len(f.children) > 0, now)
	})
	return d, err
}

// checkUnreferenced returns an error if a resource outside a family refers to a member.
func checkUnreferenced(ctx context.Context, tx *store.Tx, a address, f *family) error {
	var source string
	err := tx.QueryRow(
		ctx, `select coalesce((select r.source from reference r join document d on d.id = r.source and d.removed_at is null
		where r.target = any($1) and r.source <> all($1) order by r.source limit 1), '')`, f.ids()).Scan(&source)
	if err != nil {
		return fmt.Errorf("looking for references to %s %s: %w", a.entity.Kind, a.id, err)
	}
	if source != "" {
		return rest.Errorf(http.StatusConflict, codeState, "%s %s is referred to by %s; delete that first",
			a.entity.Kind, a.id, source)
	}
	return nil
}

// markFamilyDeleted marks a family as deleted, children before their owner, and removes
// members that nothing keeps. removed is true if it has removed the root.
func (s *Server) markFamilyDeleted(ctx context.Context, tx *store.Tx, f *family, by author,
	now time.Time) (removed bool, err error) {
	left := false
	for _, child := range f.children {
		removed, err := s.markFamilyDeleted(ctx, tx, child, by, now)
		if err != nil {
			return false, err
		}
		left = left || !removed
	}
	if f.doc, _, err = tx.Update(ctx, f.entity.storeKind(), f.doc.ID, 0, func(d *store.Document) error {
		return f.entity.markDeleted(d, left, by, now)
	}); err != nil {
		return false, err
	}
	if err := replaceReferences(ctx, tx, f.doc.ID, nil); err != nil {
		return false, err
	}
	if left || len(f.entity.RequiredAdapters) > 0 {
		return false, nil
	}
	return true, tx.Remove(ctx, f.entity.storeKind(), f.doc.ID, 0)
}

// forceDelete removes a resource whose deletion does not end, and all resources below it.
// Objects that adapters made for them may stay behind, so the history of each resource
// records the caller and the reason.
func (s *Server) forceDelete(ctx context.Context, a address, ifVersion int64, reason string) error {
	return s.store.Tx(ctx, func(tx *store.Tx) error {
		f, err := s.lockFamilyAt(ctx, tx, a)
		if err != nil {
			return err
		}
		if err := checkVersion(f.doc, ifVersion); err != nil {
			return err
		}
		if f.doc.DeletedAt == nil {
			return rest.Errorf(http.StatusConflict, codeState, "%s %s is not being deleted; delete it first",
				a.entity.Kind, a.id)
		}
		if err := checkUnreferenced(ctx, tx, a, f); err != nil {
			return err
		}
		ids := f.ids()
		if _, err := tx.Exec(ctx, `delete from reference where source = any($1) or target = any($1)`, ids); err != nil {
			return err
		}
		if err := s.removeFamily(ctx, tx, f, reason); err != nil {
			return err
		}
		if a.entity.parent == nil {
			return nil
		}
		return s.updateOwner(ctx, tx, a.entity.parent, f.doc.Scope)
	})
}

// removeFamily removes a family, children before their owner, and records the reason in
// the history of each member.
func (s *Server) removeFamily(ctx context.Context, tx *store.Tx, f *family, reason string) error {
	for _, child := range slices.Backward(f.children) {
		if err := s.removeFamily(ctx, tx, child, reason); err != nil {
			return err
		}
	}
	note := raw(map[string]string{"reason": reason})
	if err := tx.Record(ctx, "force-delete", f.doc.Kind, f.doc.ID, f.doc.Scope, note); err != nil {
		return err
	}
	return tx.Remove(ctx, f.doc.Kind, f.doc.ID, 0)
}

// finishDeletions removes resources whose deletion is complete, and whose kind has fewer
// required adapters than at the time of the deletion: no report comes any more that would
// remove them. After an error it goes on with the next resource; it returns the first
// error.
func (s *Server) finishDeletions(ctx context.Context, now time.Time) (first error) {
	for _, e := range s.registry.entities {
		q := store.Query{Kind: e.storeKind(), Deletion: store.OnlyDeleting, Limit: 100,
			Where: store.Fragment{SQL: "d.deleted_at < $1", Args: []any{now.Add(-time.Minute)}}}
		for {
			page, err := s.store.List(ctx, q)
			if err != nil {
				first = cmp.Or(first, err)
				break
			}
			for _, d := range page.Documents {
				first = cmp.Or(first, s.finishDeletion(ctx, e, d))
			}
			if q.After = page.Next; q.After == "" {
				break
			}
		}
	}
	return first
}

// finishDeletion removes a resource that is being deleted if its deletion is complete. It
// checks that without a lock first.
func (s *Server) finishDeletion(ctx context.Context, e *Entity, d store.Document) error {
	spec, err := declaredOf(d)
	if err != nil {
		return err
	}
	seen, err := observedOf(d)
	if err != nil {
		return err
	}
	if !status.Removable(e.statusResource(d, spec, false), seen.Reports, false) {
		return nil
	}
	return s.removeIfComplete(ctx, e, d.ID)
}

// removeIfComplete locks a resource that is being deleted, and removes it if its deletion
// is complete.
func (s *Server) removeIfComplete(ctx context.Context, e *Entity, id string) error {
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
		d, err := tx.Get(ctx, e.storeKind(), id)
		if err != nil {
			return err
		}
		if err := s.lockOwners(ctx, tx, d); err != nil {
			return err
		}
		return s.updateOwner(ctx, tx, e, id)
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}
