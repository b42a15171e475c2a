package records

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"atoll.dev/api/work"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/delivery"
	"atoll.dev/maestro/ledger"
	"atoll.dev/store"
)

// ForceDelete removes a bundle without its agent's confirmation, for an operator who
// knows that the agent will not confirm. One transaction removes the bundle, leaves a
// tombstone until an agent confirms, and records the operator and the reason. It
// succeeds when the bundle does not exist.
func (w *Writer) ForceDelete(ctx context.Context, id work.ID, ifMatch int64, reason string) error {
	if err := w.accepting(); err != nil {
		return err
	}
	note, err := json.Marshal(map[string]string{"reason": reason})
	if err != nil {
		return err
	}
	var d store.Document
	err = w.store.Tx(ctx, func(tx *store.Tx) (err error) {
		if err = ledger.Lock(ctx, tx, id); err != nil {
			return err
		}
		d, err = tx.GetForUpdate(ctx, bundle.Kind, string(id))
		if errors.Is(err, store.ErrNotFound) {
			d = store.Document{}
			return nil
		}
		if err != nil {
			return err
		}
		if ifMatch != 0 && ifMatch != d.Version {
			return &store.StaleError{Kind: bundle.Kind, ID: string(id), Asked: ifMatch, Latest: d.Version}
		}
		if _, err := tx.Exec(
			ctx,
			`update ledger set deleting = true, gone_at = now(), unconfirmed = true where id = $1`,
			id,
		); err != nil {
			return err
		}
		if err := tx.Record(ctx, "force-delete", bundle.Kind, string(id), d.Scope, note); err != nil {
			return err
		}
		return tx.Remove(ctx, bundle.Kind, string(id), 0)
	})
	w.count("force-delete", err)
	if err != nil || d.ID == "" {
		return err
	}
	w.agents.Forget(work.Consumer(d.Scope), id, d.Generation)
	w.log.LogAttrs(ctx, slog.LevelWarn, "bundle ended by an operator without its agent's confirmation",
		slog.String("bundle", string(id)),
		slog.String("consumer", d.Scope), slog.String("by", store.ActorFrom(ctx).Principal), slog.String("reason",
			reason))
	w.agents.SendTombstone(ctx, delivery.Work{Consumer: work.Consumer(d.Scope), ID: id, Generation: d.Generation,
		Deleting: true})
	return nil
}
