package maestro

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/ledger"
	"atoll.dev/store"
)

func (s *Server) createConsumer(ctx context.Context, req api.ConsumerCreate) (store.Document, error) {
	if err := s.accepting(); err != nil {
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
	if err := bundle.CheckConsumerName(name); err != nil {
		return store.Document{}, err
	}
	if err := bundle.CheckConsumerLabels(req.Labels); err != nil {
		return store.Document{}, err
	}
	spec, err := bundle.Marshal(bundle.Consumer{Labels: req.Labels})
	if err != nil {
		return store.Document{}, err
	}
	d, err := s.store.Create(ctx, store.Document{Kind: bundle.ConsumerKind, ID: id, Name: name, Spec: spec})
	if errors.Is(err, store.ErrExists) {
		return d, rest.Errorf(http.StatusConflict, apierror.CodeConflict, "This Consumer already exists: %s", name)
	}
	if err != nil {
		return d, err
	}
	// The agent may already run and hold works, from before the database was lost (I8).
	// Only this request makes it compare; an agent that is away compares when it connects.
	if err := s.sendDigest(ctx, name, work.DigestAnswer{Ask: true}); err != nil {
		s.log.LogAttrs(ctx, slog.LevelDebug, "the agent of a new consumer was not asked", slog.String("consumer", name),
			slog.Any("error", err))
	}
	return d, nil
}

func (s *Server) patchConsumer(ctx context.Context, id string, ifMatch int64, req api.ConsumerPatch) (store.Document,
	error) {
	if err := s.accepting(); err != nil {
		return store.Document{}, err
	}
	if req.Labels != nil {
		if err := bundle.CheckConsumerLabels(*req.Labels); err != nil {
			return store.Document{}, err
		}
	}
	d, _, err := s.store.Update(ctx, bundle.ConsumerKind, id, ifMatch, func(d *store.Document) error {
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

// deleteConsumer removes a consumer. It refuses a consumer with bundles, also bundles
// under deletion, and succeeds when the consumer does not exist.
func (s *Server) deleteConsumer(ctx context.Context, id string, ifMatch int64) error {
	if err := s.accepting(); err != nil {
		return err
	}
	return s.store.Tx(ctx, func(tx *store.Tx) error {
		d, err := tx.Get(ctx, bundle.ConsumerKind, id)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := ledger.LockConsumerForDelete(ctx, tx, d.Name); err != nil {
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
		if err := ledger.ReplaceUnknown(ctx, tx, d.Name, []string{}, nil, nil); err != nil {
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

// withObserved returns a consumer's REST form with the observed members: the time of the
// agent's last event, the time of its last comparison, and its number of unknown works.
func withObserved(d store.Document, h ledger.Holdings) (json.RawMessage, error) {
	if h == (ledger.Holdings{}) {
		return d.Wire, nil
	}
	var c api.Consumer
	if err := json.Unmarshal(d.Wire, &c); err != nil {
		return nil, fmt.Errorf("reading consumer %s: %w", d.ID, err)
	}
	if h.SeenAt != nil {
		seen := h.SeenAt.UTC().Truncate(time.Millisecond)
		c.LastSeenAt = &seen
	}
	if h.ComparedAt != nil {
		at := h.ComparedAt.UTC().Truncate(time.Millisecond)
		c.ComparedAt = &at
	}
	c.UnknownWorks = h.Unknown
	return bundle.Marshal(c)
}
