package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// maxResends bounds how often a write is sent again after errNotWritten.
const maxResends = 3

// maxOptimisticTries is how often an update tries without a lock, before it locks the row.
const maxOptimisticTries = 3

// Create stores a new document with version 1 and generation 1 and returns it as stored. The
// caller sets Kind, ID, Scope, Name, Spec, Status, DeletedAt and, if it wants another than the
// present time, CreatedAt; the store sets the rest. The error is ErrExists if a document that is
// not removed has the id, or if one that is neither removed nor being deleted has the name in that
// scope; of two concurrent writers one succeeds. For the id of a removed document, the new one has
// the next version and generation, so that no follower sees an older version.
func (s *Store) Create(ctx context.Context, d Document) (Document, error) {
	created, err := s.create(ctx, d)
	if err != nil {
		return Document{}, fmt.Errorf("creating %s %s: %w", d.Kind, d.ID, err)
	}
	return created, nil
}

func (s *Store) create(ctx context.Context, d Document) (Document, error) {
	kind, err := s.kind(d.Kind)
	if err != nil {
		return d, err
	}
	var tombstone *Document
	for attempt := 0; ; attempt++ {
		next, err := kind.completeNew(d, tombstone)
		if err != nil {
			return d, err
		}
		token := newToken()
		w, err := kind.composeCreation(ctx, next, tombstone, token)
		if err != nil {
			return d, err
		}
		hit, err := s.sendWrite(ctx, w, token)
		switch {
		case hit:
			s.countChange()
			next.token = token
			return next, nil
		case errors.Is(err, errNotWritten) && attempt < maxResends:
			continue
		case isNameTaken(err): // another transaction took the name after the statement had looked for it
			err = nil
		}
		if err != nil {
			return d, err
		}
		err = s.read(ctx, s.pool, func(ctx context.Context, c *pgx.Conn) error {
			tombstone, err = s.findConflict(ctx, c, d)
			return err
		})
		if err != nil {
			return d, err
		}
		if attempt > 100 {
			return d, ErrConflict // other writers create and remove the document again and again
		}
	}
}

func (k *KindSpec) composeCreation(ctx context.Context, next Document, tombstone *Document, token int64) (write,
	error) {
	if tombstone == nil {
		return k.composeNew(ctx, insertStatement, next, next.Spec, next.Status, token, "create", next.Scope, next.Name,
			next.DeletedAt, next.Wire[:next.head], k.facets(next))
	}
	return k.composeNew(ctx, reviveStatement, next, next.Spec, next.Status, token, "create", next.Scope, next.Name,
		next.DeletedAt, next.Wire[:next.head], k.facets(next), tombstone.Version)
}

// findConflict returns why a creation did not insert: an *ExistsError, a tombstone of the id, or neither if
// there is no conflict any more.
func (s *Store) findConflict(ctx context.Context, c querier, d Document) (tombstone *Document, err error) {
	cur, found, err := s.readOne(ctx, c, getSQL, string(d.Kind), d.ID)
	if err != nil {
		return nil, err
	}
	if found && !cur.Removed {
		return nil, &ExistsError{Kind: d.Kind, ID: d.ID}
	}
	named, taken, err := s.readOne(ctx, c, byNameSQL, string(d.Kind), d.Scope, d.Name)
	if err != nil {
		return nil, err
	}
	if taken {
		return nil, &ExistsError{Kind: d.Kind, ID: named.ID, ByName: true}
	}
	if found {
		return &cur, nil
	}
	return nil, nil
}

// Update changes a document. It reads the document, calls change with a copy, whose Spec, Status or DeletedAt change
// may replace (it must not write into their bytes), and stores the copy if the document has not changed since. The
// outcomes:
//
//   - (latest, true, nil): written; version is one higher, and generation too if Spec changed, or more when change set
//     Generation to more. DeletedAt alone does not bump the generation, and cannot be taken back.
//   - (latest, false, nil): the content is equal to what is stored (see Document.Spec for what
//     equal means); the store wrote
//     nothing, or only times of observation (KindSpec.Observed), and woke no follower.
//   - ErrStale, a *StaleError with the latest version: ifVersion is not 0 and not the latest.
//   - ErrNotFound; ErrInvalid; whatever change returned, as it is; see errors.go for the rest.
//
// change may be called several times, and must depend on its argument alone: after the write of another writer,
// Update calls it again with the new document (if ifVersion is 0). It must not use the store. After several tries
// Update locks the document, so that concurrent updaters all succeed.
func (s *Store) Update(ctx context.Context, kind Kind, id string, ifVersion int64, change func(*Document) error) (
	Document, bool, error) {
	return s.update(ctx, kind, id, ifVersion, nil, modify, change)
}

// UpdateFrom is Update for a caller that has the document already, from a feed or an earlier call.
// If known is still the latest version, that saves reading it: the update is one round trip.
// Otherwise it is as Update with ifVersion 0. From a document of GetStatus it may return a partial
// one, too.
func (s *Store) UpdateFrom(ctx context.Context, known Document, change func(*Document) error) (Document, bool, error) {
	return s.update(ctx, known.Kind, known.ID, 0, &known, modify, change)
}

// Remove ends a document. It leaves a tombstone, with a new version, for followers. ErrNotFound when there is no such
// document (any more), ErrStale as Update.
func (s *Store) Remove(ctx context.Context, kind Kind, id string, ifVersion int64) error {
	_, _, err := s.update(ctx, kind, id, ifVersion, nil, remove, nil)
	return err
}

func (s *Store) update(ctx context.Context, kind Kind, id string, ifVersion int64, known *Document, goal goal,
	change func(*Document) error) (Document, bool, error) {
	verb := "updating"
	if goal == remove {
		verb = "removing"
	}
	spec, err := s.kind(kind)
	if err != nil {
		return Document{}, false, fmt.Errorf("%s: %w", verb, err)
	}
	resent := 0
	for try := 0; try < maxOptimisticTries; try++ {
		doc, changed, again, err := s.tryUpdate(ctx, spec, id, ifVersion, known, goal, change)
		known = nil
		if errors.Is(err, errNotWritten) && resent < maxResends {
			resent++
			try--
			continue
		}
		if err != nil {
			return Document{}, false, fmt.Errorf("%s %s %s: %w", verb, kind, id, err)
		}
		if !again {
			if goal == remove {
				s.countChange()
			}
			return doc, changed, nil
		}
	}
	// One goroutine of this process at a time waits for the row's lock, so that one document does not use up the pool.
	release, err := s.documentLocks.lock(ctx, string(kind)+"/"+id)
	if err != nil {
		return Document{}, false, err
	}
	defer release()
	var doc Document
	var changed bool
	err = s.Tx(ctx, func(tx *Tx) error {
		doc, changed, err = tx.update(ctx, kind, id, ifVersion, goal, change)
		return err
	})
	if err != nil {
		return Document{}, false, err
	}
	return doc, changed, nil
}

// tryUpdate updates a document without a lock. again reports that another writer was faster.
func (s *Store) tryUpdate(ctx context.Context, spec *KindSpec, id string, ifVersion int64, known *Document, goal goal,
	change func(*Document) error) (doc Document, changed, again bool, err error) {
	var cur Document
	if known != nil {
		cur = *known
	} else {
		found := false
		if cur, found, err = s.lookup(ctx, getSQL, string(spec.Kind), id); err != nil {
			return doc, false, false, err
		}
		if !found {
			return doc, false, false, ErrNotFound
		}
		if err := checkVersion(cur, ifVersion); err != nil {
			return doc, false, false, err
		}
	}
	token := newToken()
	next, w, changed, err := spec.change(ctx, cur, token, goal, change)
	if errors.Is(err, errPartial) {
		return doc, false, true, nil
	}
	if err != nil {
		return doc, false, false, err
	}
	if w.sql == "" && known != nil {
		return doc, false, true, nil // the caller's document may be old: read it
	}
	if w.sql == "" {
		return cur, false, false, nil
	}
	if s.opts.Hooks.BeforeWrite != nil {
		s.opts.Hooks.BeforeWrite(spec.Kind, id)
	}
	hit, err := s.sendWrite(ctx, w, token)
	if err != nil {
		return doc, false, false, err
	}
	return next, hit && changed, !hit, nil
}

// checkVersion returns ErrNotFound for a tombstone, and a *StaleError if the document has another version than
// ifVersion; 0 is any version.
func checkVersion(cur Document, ifVersion int64) error {
	if cur.Removed {
		return ErrNotFound
	}
	if ifVersion != 0 && cur.Version != ifVersion {
		return &StaleError{Kind: cur.Kind, ID: cur.ID, Asked: ifVersion, Latest: cur.Version, Current: cur}
	}
	return nil
}

// WaitTurn waits, without a connection, until no other caller in this process has its turn with the document; release
// ends the turn. It excludes no other process. Callers use it before transactions that wait for the same row lock,
// which would otherwise use up the connections of the pool.
func (s *Store) WaitTurn(ctx context.Context, kind Kind, id string) (release func(), err error) {
	return s.documentLocks.lock(ctx, string(kind)+"/"+id)
}
