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

// tree is a resource with all resources below it, read under the lock of its root.
type tree struct {
	entity   *Entity
	doc      store.Document
	children []*tree
}

// lockTree locks a resource and all resources below it, owners first.
func (s *Server) lockTree(ctx context.Context, tx *store.Tx, e *Entity, d store.Document) (*tree, error) {
	t := &tree{entity: e, doc: d}
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
			below, err := s.lockTree(ctx, tx, kind, child)
			if err != nil {
				return nil, err
			}
			t.children = append(t.children, below)
		}
	}
	return t, nil
}

// ids returns the ids of all resources of the tree, the root first.
func (t *tree) ids() []string {
	ids := []string{t.doc.ID}
	for _, child := range t.children {
		ids = append(ids, child.ids()...)
	}
	return ids
}

// hasChildren reports whether the root has children.
func (t *tree) hasChildren() status.Children {
	if len(t.children) > 0 {
		return status.HasChildren
	}
	return status.NoChildren
}

// findRestriction returns a resource that forbids the deletion of its owner, nil if there is
// none. A resource that is being deleted already does not forbid it.
func (t *tree) findRestriction() *tree {
	for _, child := range t.children {
		if child.entity.OnParentDelete == Restrict && child.doc.DeletedAt == nil {
			return child
		}
		if r := child.findRestriction(); r != nil {
			return r
		}
	}
	return nil
}

// lockTreeAt locks the tree of the resource at an address; its owners first.
func (s *Server) lockTreeAt(ctx context.Context, tx *store.Tx, a address) (*tree, error) {
	d, err := tx.Get(ctx, a.entity.storeKind(), a.id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, missing(a.entity, a.id)
	}
	if err != nil {
		return nil, err
	}
	if err := a.admits(ctx, d); err != nil {
		return nil, err // before a lock: nobody makes writers of another tenant wait, or learns by the time that it exists
	}
	if err := s.lockOwners(ctx, tx, d); err != nil {
		return nil, err
	}
	if d, err = s.lock(ctx, tx, a); err != nil {
		return nil, err
	}
	return s.lockTree(ctx, tx, a.entity, d)
}

// deleteResource marks a resource and the resources below it as deleted. It removes at
// once those without required adapters and without remaining children. A repeated call
// only moves updated_time.
func (s *Server) deleteResource(ctx context.Context, a address, ifVersion int64) (d store.Document, err error) {
	by, now := authorOf(ctx), time.Now().UTC().Truncate(time.Microsecond)
	var deleted *tree
	err = s.store.Tx(ctx, func(tx *store.Tx) error {
		t, err := s.lockTreeAt(ctx, tx, a)
		if err != nil {
			return err
		}
		d = t.doc
		if err := checkVersion(d, ifVersion); err != nil {
			return err
		}
		if d.DeletedAt != nil {
			d, err = repeatDeletions(ctx, tx, t, now)
			return err
		}
		if r := t.findRestriction(); r != nil {
			return rest.Errorf(http.StatusConflict, codeState, "%s %s still has %s %s; delete that first",
				a.entity.Kind, a.id, r.entity.Kind, r.doc.ID)
		}
		if err := checkUnreferenced(ctx, tx, a, t); err != nil {
			return err
		}
		if s.opts.Extension != nil {
			if err := s.opts.Extension.RefuseDeletion(ctx, tx, d); err != nil {
				return err
			}
		}
		removed, err := s.markTreeDeleted(ctx, tx, t, by, now)
		if err != nil {
			return err
		}
		d, deleted = t.doc, t
		if !removed || a.entity.parent == nil {
			return nil
		}
		return s.updateOwner(ctx, tx, a.entity.parent, d.Scope)
	})
	if err == nil {
		s.recent.forgetTree(deleted)
		s.metrics.unreconciledTree(deleted, now)
	}
	return d, err
}

// repeatDeletions records a repeated DELETE in a resource, which it returns, and in the children that were
// deleted with it.
func repeatDeletions(ctx context.Context, tx *store.Tx, t *tree, now time.Time) (store.Document, error) {
	for _, child := range t.children {
		if child.entity.OnParentDelete != Cascade {
			continue
		}
		if _, err := repeatDeletions(ctx, tx, child, now); err != nil {
			return t.doc, err
		}
	}
	d, _, err := tx.Update(ctx, t.entity.storeKind(), t.doc.ID, 0, func(d *store.Document) error {
		return t.entity.repeatDeletion(d, t.hasChildren(), now)
	})
	return d, err
}

// checkUnreferenced returns an error if a resource outside a tree refers to one in it.
func checkUnreferenced(ctx context.Context, tx *store.Tx, a address, t *tree) error {
	var source string
	err := tx.QueryRow(
		ctx, `select coalesce((select r.source from reference r join document d on d.id = r.source and d.removed_at is null
		where r.target = any($1) and r.source <> all($1) order by r.source limit 1), '')`, t.ids()).Scan(&source)
	if err != nil {
		return fmt.Errorf("looking for references to %s %s: %w", a.entity.Kind, a.id, err)
	}
	if source != "" {
		return rest.Errorf(http.StatusConflict, codeState, "%s %s is referred to by %s; delete that first",
			a.entity.Kind, a.id, source)
	}
	return nil
}

// markTreeDeleted marks the resources of a tree as deleted, children before their owner. It
// removes resources without required adapters and without remaining children. removed is
// true if it has removed the root.
func (s *Server) markTreeDeleted(ctx context.Context, tx *store.Tx, t *tree, by author,
	now time.Time) (removed bool, err error) {
	left := status.NoChildren
	for _, child := range t.children {
		removed, err := s.markTreeDeleted(ctx, tx, child, by, now)
		if err != nil {
			return false, err
		}
		if !removed {
			left = status.HasChildren
		}
	}
	if t.doc, _, err = tx.Update(ctx, t.entity.storeKind(), t.doc.ID, 0, func(d *store.Document) error {
		return t.entity.markDeleted(d, left, by, now)
	}); err != nil {
		return false, err
	}
	if err := replaceReferences(ctx, tx, t.doc.ID, nil); err != nil {
		return false, err
	}
	if left == status.HasChildren || len(t.entity.RequiredAdapters) > 0 {
		return false, nil
	}
	return true, tx.Remove(ctx, t.entity.storeKind(), t.doc.ID, 0)
}

// forceDelete removes a resource whose deletion does not end, and all resources below it.
// Objects that adapters made for them may stay behind, so the history of each resource
// records the caller and the reason.
func (s *Server) forceDelete(ctx context.Context, a address, ifVersion int64, reason string) error {
	return s.store.Tx(ctx, func(tx *store.Tx) error {
		t, err := s.lockTreeAt(ctx, tx, a)
		if err != nil {
			return err
		}
		if err := checkVersion(t.doc, ifVersion); err != nil {
			return err
		}
		if t.doc.DeletedAt == nil {
			return rest.Errorf(http.StatusConflict, codeState, "%s %s is not being deleted; delete it first",
				a.entity.Kind, a.id)
		}
		if err := checkUnreferenced(ctx, tx, a, t); err != nil {
			return err
		}
		ids := t.ids()
		if _, err := tx.Exec(ctx, `delete from reference where source = any($1) or target = any($1)`, ids); err != nil {
			return err
		}
		if err := s.removeTree(ctx, tx, t, reason); err != nil {
			return err
		}
		if a.entity.parent == nil {
			return nil
		}
		return s.updateOwner(ctx, tx, a.entity.parent, t.doc.Scope)
	})
}

// removeTree removes the resources of a tree, children before their owner, and records the
// reason in the history of each.
func (s *Server) removeTree(ctx context.Context, tx *store.Tx, t *tree, reason string) error {
	for _, child := range slices.Backward(t.children) {
		if err := s.removeTree(ctx, tx, child, reason); err != nil {
			return err
		}
	}
	note := raw(map[string]string{"reason": reason})
	if err := tx.Record(ctx, "force-delete", t.doc.Kind, t.doc.ID, t.doc.Scope, note); err != nil {
		return err
	}
	return tx.Remove(ctx, t.doc.Kind, t.doc.ID, 0)
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
	if !status.Removable(e.statusResource(d, spec, status.NoChildren), seen.Reports) {
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
