package records

import (
	"context"
	"errors"
	"net/http"

	"github.com/google/uuid"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/ledger"
	"atoll.dev/store"
)

// CreateConsumer stores a new consumer, and has its agent compare. It refuses a name that exists.
func (w *Writer) CreateConsumer(ctx context.Context, req api.ConsumerCreate) (store.Document, error) {
	if err := w.accepting(); err != nil {
		return store.Document{}, err
	}
	if req.ID != "" {
		return store.Document{}, apierror.Invalid("id must be empty")
	}
	id := uuid.NewString()
	name := req.Name
	if name == "" {
		name = id
	}
	if err := bundle.CheckConsumerName(work.Consumer(name)); err != nil {
		return store.Document{}, err
	}
	if err := bundle.CheckConsumerLabels(req.Labels); err != nil {
		return store.Document{}, err
	}
	spec, err := bundle.Marshal(bundle.Consumer{Labels: req.Labels})
	if err != nil {
		return store.Document{}, err
	}
	d, err := w.store.Create(ctx, store.Document{Kind: bundle.ConsumerKind, ID: id, Name: name, Spec: spec})
	if errors.Is(err, store.ErrExists) {
		return d, rest.Errorf(http.StatusConflict, apierror.CodeConflict, "This Consumer already exists: %s", name)
	}
	if err != nil {
		return d, err
	}
	w.agents.AskDigest(ctx, work.Consumer(name))
	return d, nil
}

// PatchConsumer changes the labels of a consumer, at the version of ifMatch unless that is 0.
func (w *Writer) PatchConsumer(ctx context.Context, id string, ifMatch int64, req api.ConsumerPatch) (
	store.Document, error) {
	if err := w.accepting(); err != nil {
		return store.Document{}, err
	}
	if req.Labels != nil {
		if err := bundle.CheckConsumerLabels(*req.Labels); err != nil {
			return store.Document{}, err
		}
	}
	d, _, err := w.store.Update(ctx, bundle.ConsumerKind, id, ifMatch, func(d *store.Document) error {
		if req.Labels == nil {
			return nil
		}
		spec, err := bundle.Marshal(bundle.Consumer{Labels: *req.Labels})
		d.Spec = spec
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return d, apierror.NotFound("Consumer", id)
	}
	return d, err
}

// DeleteConsumer removes a consumer. It refuses a consumer with bundles, also bundles
// under deletion, and succeeds when the consumer does not exist.
func (w *Writer) DeleteConsumer(ctx context.Context, id string, ifMatch int64) error {
	if err := w.accepting(); err != nil {
		return err
	}
	return w.store.Tx(ctx, func(tx *store.Tx) error {
		d, err := tx.Get(ctx, bundle.ConsumerKind, id)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := ledger.LockConsumerForDelete(ctx, tx, work.Consumer(d.Name)); err != nil {
			return err
		}
		var bundles int
		err = tx.QueryRow(ctx, `select count(*) from ledger where consumer = $1 and gone_at is null`, d.Name).Scan(
			&bundles)
		if err != nil {
			return err
		}
		if bundles > 0 {
			return rest.Errorf(http.StatusForbidden, apierror.CodeForbidden,
				"consumer %s has %d resource bundles, those under deletion included; delete them and wait until its "+
					"agent has confirmed", d.Name, bundles)
		}
		if err := ledger.ReplaceUnknown(ctx, tx, work.Consumer(d.Name), []work.ID{}, nil, nil); err != nil {
			return err
		}
		for _, table := range []string{"agent_digest", "agent_compared", "agent_seen"} {
			if _, err := tx.Exec(ctx, `delete from `+table+` where consumer = $1`, d.Name); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, `update ledger set unconfirmed = false where consumer = $1 and unconfirmed`,
			d.Name); err != nil {
			return err
		}
		err = tx.Remove(ctx, bundle.ConsumerKind, id, ifMatch)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
}
