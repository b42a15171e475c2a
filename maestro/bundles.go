package maestro

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/api/work"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/ledger"
	"atoll.dev/store"
)

// Each of these functions changes a bundle, its ledger and its history in one
// transaction, and returns after the commit (I5).

// createBundle stores a new bundle.
func (s *Server) createBundle(ctx context.Context, req bundle.Request) (version int64, err error) {
	if err := s.accepting(); err != nil {
		return 0, err
	}
	err = s.store.Tx(ctx, func(tx *store.Tx) (err error) {
		version, err = s.create(ctx, tx, req.Record)
		return err
	})
	s.metrics.processed("create", err)
	return version, err
}

// create stores a new bundle in a transaction.
func (s *Server) create(ctx context.Context, tx *store.Tx, r bundle.Spec) (version int64, err error) {
	r.Version = 1
	if err := s.checkSize(r); err != nil {
		return 0, err
	}
	spec, err := bundle.Marshal(r)
	if err != nil {
		return 0, err
	}
	if err := ledger.LockConsumerForBundle(ctx, tx, r.Consumer); err != nil {
		return 0, err
	}
	if _, err := tx.GetByName(ctx, bundle.ConsumerKind, "", r.Consumer); errors.Is(err, store.ErrNotFound) {
		return 0, apierror.Invalid("there is no consumer named %q; register it first", r.Consumer)
	} else if err != nil {
		return 0, err
	}
	d, err := tx.Create(ctx, store.Document{Kind: bundle.Kind, ID: r.ID, Scope: r.Consumer, Spec: spec})
	if errors.Is(err, store.ErrExists) {
		return 0, rest.Errorf(http.StatusConflict, apierror.CodeConflict, apierror.AlreadyExists)
	}
	if err != nil {
		return 0, err
	}
	if r, err = bundle.SpecOf(d); err != nil {
		return 0, err
	}
	if err := ledger.Want(ctx, tx, d, r); err != nil {
		return 0, err
	}
	d, err = adopt(ctx, tx, d)
	return d.Version, err
}

// adopt joins a new bundle with an unknown work of the same id, if its agent holds one:
// the bundle gets a generation above the one that the agent has.
func adopt(ctx context.Context, tx *store.Tx, d store.Document) (store.Document, error) {
	var theirs int64
	err := tx.QueryRow(ctx, `delete from unknown_work where consumer = $1 and id = $2 returning generation`, d.Scope,
		d.ID).Scan(&theirs)
	if errors.Is(err, pgx.ErrNoRows) {
		return d, nil
	}
	if err != nil {
		return d, err
	}
	raised, _, err := raiseGeneration(ctx, tx, d, theirs)
	return raised, err
}

// updateBundle replaces the content of a bundle. Equal content changes nothing.
func (s *Server) updateBundle(ctx context.Context, req bundle.Request) (version int64, err error) {
	if err := s.accepting(); err != nil {
		return 0, err
	}
	if err := s.checkSize(req.Record); err != nil {
		return 0, err
	}
	err = s.store.Tx(ctx, func(tx *store.Tx) error {
		if err := ledger.Lock(ctx, tx, req.Record.ID); err != nil {
			return err
		}
		d, changed, err := tx.Update(ctx, bundle.Kind, req.Record.ID, 0, func(d *store.Document) error {
			return bundle.DecideUpdate(d, req)
		})
		if errors.Is(err, store.ErrNotFound) {
			return apierror.NotFound("Resource", req.Record.ID)
		}
		version = d.Version
		if err != nil || !changed {
			return err
		}
		have, err := bundle.SpecOf(d)
		if err != nil {
			return err
		}
		return ledger.Want(ctx, tx, d, have)
	})
	s.metrics.processed("update", err)
	return version, err
}

// deleteBundle orders the deletion of a bundle for its source. It succeeds when the
// bundle does not exist or is already under deletion.
func (s *Server) deleteBundle(ctx context.Context, req bundle.Request) error {
	return s.orderDeletion(ctx, req.Record.ID, func(d store.Document) error {
		have, err := bundle.SpecOf(d)
		if err != nil {
			return err
		}
		if err := bundle.CheckChange(d, have, req); err != nil {
			return err
		}
		return nil
	})
}

// deleteBundleREST orders the deletion of a bundle for an operator, at the version of
// ifMatch unless that is 0.
func (s *Server) deleteBundleREST(ctx context.Context, id string, ifMatch int64) error {
	return s.orderDeletion(ctx, id, func(d store.Document) error {
		if ifMatch != 0 && ifMatch != d.Version {
			return &store.StaleError{Kind: bundle.Kind, ID: id, Asked: ifMatch, Latest: d.Version}
		}
		return nil
	})
}

// orderDeletion orders the deletion of a bundle, unless check refuses it.
func (s *Server) orderDeletion(ctx context.Context, id string, check func(store.Document) error) error {
	if err := s.accepting(); err != nil {
		return err
	}
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
		if err := ledger.Lock(ctx, tx, id); err != nil {
			return err
		}
		d, changed, err := tx.Update(ctx, bundle.Kind, id, 0, func(d *store.Document) error {
			if err := check(*d); err != nil {
				return err
			}
			bundle.DecideDelete(d, time.Now())
			return nil
		})
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil || !changed {
			return err
		}
		have, err := bundle.SpecOf(d)
		if err != nil {
			return err
		}
		return ledger.Want(ctx, tx, d, have)
	})
	s.metrics.processed("delete", err)
	return err
}

// publishSpec applies a spec event of a source, and returns the bundle's new version;
// 0 after a deletion.
func (s *Server) publishSpec(ctx context.Context, eventType string, req bundle.Request) (version int64, err error) {
	switch eventType {
	case work.SpecCreate:
		return s.createBundle(ctx, req)
	case work.SpecUpdate:
		return s.updateBundle(ctx, req)
	default:
		return 0, s.deleteBundle(ctx, req)
	}
}
