package records

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/delivery"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/wire"
	"atoll.dev/store"
)

// Unknown works are works that agents hold and that have no bundle, after the database
// was lost or restored (I8, docs/decisions/022). They stay applied. A source adopts an
// unknown work when it creates a bundle of the same id (adopt in bundles.go). An
// operator can make the server adopt the work for a source, with the content that its
// agent holds, or delete it.

// DeleteUnknown orders an agent to delete an unknown work. A tombstone replaces the
// unknown work, so that comparisons repeat the order until the agent has confirmed. It
// succeeds when there is no such work.
func (w *Writer) DeleteUnknown(ctx context.Context, consumer work.Consumer, id work.ID, reason string) error {
	if err := w.accepting(); err != nil {
		return err
	}
	note, err := json.Marshal(map[string]string{"reason": reason})
	if err != nil {
		return err
	}
	var generation int64
	found := false
	err = w.store.Tx(ctx, func(tx *store.Tx) error {
		found = false
		if err := ledger.Lock(ctx, tx, id); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, `delete from unknown_work where consumer = $1 and id = $2 returning generation`,
			consumer, id).Scan(&generation)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		tag, err := tx.Exec(
			ctx,
			`insert into ledger as l (id, consumer, source, wanted, deleting, gone_at, unconfirmed) values ($1, $2, '', $3, true, now(), true)
			on conflict (id) do update set consumer = excluded.consumer, source = '', wanted = greatest(l.wanted, excluded.wanted), deleting = true, gone_at = now(), unconfirmed = true
			where l.gone_at is not null`,
			id,
			consumer,
			generation,
		)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return rest.Errorf(http.StatusConflict, apierror.CodeConflict,
				"there is a bundle %s on another consumer; delete that first", id)
		}
		found = true
		return tx.Record(ctx, "delete-unknown", bundle.Kind, string(id), string(consumer), note)
	})
	w.count("delete-unknown", err)
	if err != nil {
		return err
	}
	if found {
		w.log.LogAttrs(ctx, slog.LevelWarn, "unknown work is deleted by an operator", slog.String("bundle", string(id)),
			slog.String("consumer", string(consumer)),
			slog.String("by", store.ActorFrom(ctx).Principal), slog.String("reason", reason))
		w.agents.SendTombstone(ctx, delivery.Work{Consumer: consumer, ID: id, Generation: generation, Deleting: true})
		w.unknownChanged()
	}
	return nil
}

// RequestAdoption records that an operator wants an unknown work adopted for a source. The server that receives the
// work's content from its agent creates the bundle; see AdoptHeldSpec.
func (w *Writer) RequestAdoption(ctx context.Context, consumer work.Consumer, id work.ID,
	req api.Adoption) (api.UnknownWork, error) {
	switch {
	case req.Source == "":
		return api.UnknownWork{}, apierror.Invalid("source is missing; it is the source that is to own the bundle")
	case len(req.Source) > wire.MaxSource:
		return api.UnknownWork{}, apierror.Invalid("source has %d bytes, at most %d are possible", len(req.Source),
			wire.MaxSource)
	case len(req.Reason) > MaxReason:
		return api.UnknownWork{}, apierror.Invalid("reason has %d bytes, at most %d are possible", len(req.Reason),
			MaxReason)
	}
	if err := w.accepting(); err != nil {
		return api.UnknownWork{}, err
	}
	u := api.UnknownWork{ID: string(id), ConsumerName: string(consumer), AdoptingFor: req.Source}
	err := w.store.Tx(ctx, func(tx *store.Tx) error {
		err := tx.QueryRow(
			ctx,
			`update unknown_work set adopt_source = $3, adopt_by = $4, adopt_reason = $5 where consumer = $1 and id = $2 returning generation, first_seen`,
			consumer,
			id,
			req.Source,
			store.ActorFrom(ctx).Principal,
			req.Reason,
		).Scan(&u.Version, &u.FirstSeenAt)
		if errors.Is(err, pgx.ErrNoRows) {
			return rest.Errorf(http.StatusNotFound, apierror.CodeNotFound, "consumer %s has no unknown work %s",
				consumer, id)
		}
		return err
	})
	u.FirstSeenAt = u.FirstSeenAt.UTC()
	return u, err
}

// AdoptHeldSpec creates a bundle from the content that an agent holds, if an operator
// has asked for it. Otherwise it changes nothing: an agent decides no spec (I7).
func (w *Writer) AdoptHeldSpec(ctx context.Context, consumer work.Consumer, m bus.Event) error {
	var h work.HeldSpec
	if err := rest.DecodeJSON(m.Data, &h); err != nil {
		return err
	}
	metadata, err := bundle.CheckMetadata(h.Metadata)
	if err != nil {
		return err
	}
	if err := bundle.CheckID(h.ID); err != nil {
		return err
	}
	if err := bundle.CheckHeldData(h.Bundle); err != nil {
		return err
	}
	now := time.Now().UTC()
	r := bundle.Spec{
		EventID: m.ID, SpecVersion: "1.0", Type: work.SpecCreate, Time: &now, ContentType: "application/json",
		Consumer: consumer, ID: h.ID, Version: 1, Metadata: metadata, Data: h.Bundle,
	}
	adopted := false
	err = w.store.Tx(ctx, func(tx *store.Tx) error {
		adopted = false
		var by, reason string
		err := tx.QueryRow(
			ctx,
			`select adopt_source, adopt_by, adopt_reason from unknown_work where consumer = $1 and id = $2 and adopt_source <> ''`,
			consumer,
			h.ID,
		).Scan(&r.Source, &by, &reason)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		ctx := store.WithActor(ctx, store.Actor{Principal: by})
		if _, err := w.create(ctx, tx, r); err != nil {
			return err
		}
		adopted = true
		note, err := json.Marshal(map[string]string{"reason": reason, "source": r.Source})
		if err != nil {
			return err
		}
		return tx.Record(ctx, "adopt-unknown", bundle.Kind, string(h.ID), string(consumer), note)
	})
	if err != nil {
		return fmt.Errorf("adopting work %s of %s: %w", h.ID, consumer, err)
	}
	if adopted {
		w.log.LogAttrs(ctx, slog.LevelInfo, "unknown work adopted", slog.String("bundle", string(h.ID)),
			slog.String("consumer", string(consumer)), slog.String("source", r.Source))
		w.unknownChanged()
	}
	return nil
}
