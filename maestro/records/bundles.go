package records

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

// ApplySpec applies a spec event of a source, and returns the bundle's new version;
// 0 after a deletion.
func (w *Writer) ApplySpec(ctx context.Context, eventType string, req bundle.Request) (version int64, err error) {
	switch eventType {
	case work.SpecCreate:
		return w.createBundle(ctx, req)
	case work.SpecUpdate:
		return w.updateBundle(ctx, req)
	default:
		return 0, w.deleteBundle(ctx, req)
	}
}

// createBundle stores a new bundle.
func (w *Writer) createBundle(ctx context.Context, req bundle.Request) (version int64, err error) {
	if err := w.accepting(); err != nil {
		return 0, err
	}
	err = w.store.Tx(ctx, func(tx *store.Tx) (err error) {
		version, err = w.create(ctx, tx, req.Record)
		return err
	})
	w.count("create", err)
	return version, err
}

// create stores a new bundle in a transaction.
func (w *Writer) create(ctx context.Context, tx *store.Tx, r bundle.Spec) (version int64, err error) {
	r.Version = 1
	if err := w.checkSize(r); err != nil {
		return 0, err
	}
	spec, err := bundle.Marshal(r)
	if err != nil {
		return 0, err
	}
	if err := ledger.LockConsumerForBundle(ctx, tx, r.Consumer); err != nil {
		return 0, err
	}
	if _, err := tx.GetByName(ctx, bundle.ConsumerKind, "", string(r.Consumer)); errors.Is(err, store.ErrNotFound) {
		return 0, apierror.Invalid("there is no consumer named %q; register it first", r.Consumer)
	} else if err != nil {
		return 0, err
	}
	d, err := tx.Create(ctx, store.Document{Kind: bundle.Kind, ID: string(r.ID), Scope: string(r.Consumer), Spec: spec})
	if errors.Is(err, store.ErrExists) {
		return 0, rest.Errorf(http.StatusConflict, apierror.CodeConflict, apierror.AlreadyExists)
	}
	if err != nil {
		return 0, err
	}
	r.Offset = bundle.FirstOffset(d.Generation)
	deleted, err := ledger.DeletedGeneration(ctx, tx, r.ID)
	if err != nil {
		return 0, err
	}
	if err := ledger.RecordOrder(ctx, tx, d, r); err != nil {
		return 0, err
	}
	if d, _, err = RaiseGeneration(ctx, tx, d, deleted); err != nil {
		return 0, err
	}
	d, err = adopt(ctx, tx, d)
	return d.Version, err
}

// adopt joins a new bundle with an unknown work of the same id, if its agent holds one:
// it gives the bundle a generation above the agent's.
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
	raised, _, err := RaiseGeneration(ctx, tx, d, theirs)
	return raised, err
}

// updateBundle replaces the content of a bundle. Equal content changes nothing.
func (w *Writer) updateBundle(ctx context.Context, req bundle.Request) (version int64, err error) {
	if err := w.accepting(); err != nil {
		return 0, err
	}
	if err := w.checkSize(req.Record); err != nil {
		return 0, err
	}
	err = w.store.Tx(ctx, func(tx *store.Tx) error {
		if err := ledger.Lock(ctx, tx, req.Record.ID); err != nil {
			return err
		}
		var spec bundle.Spec
		d, changed, err := tx.Update(ctx, bundle.Kind, string(req.Record.ID), 0, func(d *store.Document) (err error) {
			spec, err = bundle.DecideUpdate(d, req)
			return err
		})
		if errors.Is(err, store.ErrNotFound) {
			return apierror.NotFound("Resource", string(req.Record.ID))
		}
		version = d.Version
		if err != nil || !changed {
			return err
		}
		return ledger.RecordOrder(ctx, tx, d, spec)
	})
	w.count("update", err)
	return version, err
}

// deleteBundle orders the deletion of a bundle for its source. It succeeds when the
// bundle does not exist or is already under deletion.
func (w *Writer) deleteBundle(ctx context.Context, req bundle.Request) error {
	return w.orderDeletion(ctx, req.Record.ID, func(d store.Document, have bundle.Spec) error {
		return bundle.CheckChange(d, have, req)
	})
}

// DeleteBundle orders the deletion of a bundle for an operator, at the version of
// ifMatch unless that is 0. It succeeds when the bundle does not exist or is already under deletion.
func (w *Writer) DeleteBundle(ctx context.Context, id work.ID, ifMatch int64) error {
	return w.orderDeletion(ctx, id, func(d store.Document, _ bundle.Spec) error {
		if ifMatch != 0 && ifMatch != d.Version {
			return &store.StaleError{Kind: bundle.Kind, ID: string(id), Asked: ifMatch, Latest: d.Version}
		}
		return nil
	})
}

// orderDeletion orders the deletion of a bundle, unless check refuses it.
func (w *Writer) orderDeletion(ctx context.Context, id work.ID, check func(store.Document, bundle.Spec) error) error {
	if err := w.accepting(); err != nil {
		return err
	}
	err := w.store.Tx(ctx, func(tx *store.Tx) error {
		if err := ledger.Lock(ctx, tx, id); err != nil {
			return err
		}
		var spec bundle.Spec
		d, changed, err := tx.Update(ctx, bundle.Kind, string(id), 0, func(d *store.Document) (err error) {
			if spec, err = bundle.SpecOf(*d); err != nil {
				return err
			}
			if err := check(*d, spec); err != nil {
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
		return ledger.RecordOrder(ctx, tx, d, spec)
	})
	w.count("delete", err)
	return err
}

// maxRaise is the highest generation of an agent above which a bundle is raised.
const maxRaise = 1 << 40

// RaiseGeneration gives a bundle a generation above the given one, which its agent has.
// This is necessary after the database was restored, or rebuilt from the sources (I8):
// agents refuse a lower generation, even of a deletion, and an agent's content of the
// same generation may differ. It returns false when the bundle's generation is higher
// already, or above exceeds maxRaise.
func RaiseGeneration(ctx context.Context, tx *store.Tx, d store.Document, above int64) (store.Document, bool, error) {
	if d.Generation > above || above > maxRaise {
		return d, false, nil
	}
	var spec bundle.Spec
	d, _, err := tx.Update(ctx, bundle.Kind, d.ID, 0, func(d *store.Document) error {
		var err error
		if spec, err = bundle.SpecOf(*d); err != nil {
			return err
		}
		spec.Version = spec.VersionAt(d.Generation) // the source has not changed it
		d.Generation = above + 1
		spec.Offset = d.Generation - spec.Version
		d.Spec, err = bundle.Marshal(spec)
		return err
	})
	if err != nil {
		return d, false, err
	}
	return d, true, ledger.RecordOrder(ctx, tx, d, spec)
}
