package maestro

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/wire"
	"atoll.dev/store"
)

// maxReason is the largest length in bytes of a reason in an audit record.
const maxReason = 1024

// reasonFrom reads the operator's reason for an action that cannot be undone.
func reasonFrom(q url.Values, what string) (string, error) {
	reason := strings.TrimSpace(q.Get("reason"))
	switch {
	case reason == "":
		return "", apierror.Invalid("reason is missing; it says in the record why %s", what)
	case len(reason) > maxReason:
		return "", apierror.Invalid("reason has %d bytes, at most %d are possible", len(reason), maxReason)
	}
	return reason, nil
}

func (s *Server) deleteBundleHTTP(w http.ResponseWriter, r *http.Request) error {
	version, err := s.ifMatch(r, bundle.Kind, "ResourceBundle")
	if err != nil {
		return err
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return apierror.BadRequest("the query cannot be decoded: %s", err)
	}
	force := false
	if text := q.Get("force"); text != "" {
		if force, err = strconv.ParseBool(text); err != nil {
			return apierror.BadRequest("force=%s is neither true nor false", rest.Shorten(text, 64))
		}
	}
	if !force {
		err = s.deleteBundleREST(r.Context(), r.PathValue("id"), version)
	} else {
		var reason string
		if reason, err = reasonFrom(q, "a bundle is ended without its agent's confirmation"); err != nil {
			return err
		}
		err = s.forceDelete(r.Context(), r.PathValue("id"), version, reason)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// forceDelete removes a bundle without its agent's confirmation, for an operator who
// knows that the agent will not confirm. One transaction removes the bundle, leaves a
// tombstone until an agent confirms, and records the operator and the reason. It
// succeeds when the bundle does not exist.
func (s *Server) forceDelete(ctx context.Context, id string, ifMatch int64, reason string) error {
	if err := s.accepting(); err != nil {
		return err
	}
	note, err := json.Marshal(map[string]string{"reason": reason})
	if err != nil {
		return err
	}
	var d store.Document
	err = s.store.Tx(ctx, func(tx *store.Tx) (err error) {
		if err = ledger.Lock(ctx, tx, id); err != nil {
			return err
		}
		d, err = tx.GetForUpdate(ctx, bundle.Kind, id)
		if errors.Is(err, store.ErrNotFound) {
			d = store.Document{}
			return nil
		}
		if err != nil {
			return err
		}
		if ifMatch != 0 && ifMatch != d.Version {
			return &store.StaleError{Kind: bundle.Kind, ID: id, Asked: ifMatch, Latest: d.Version}
		}
		if _, err := tx.Exec(
			ctx,
			`update ledger set deleting = true, gone_at = now(), unconfirmed = true where id = $1`,
			id,
		); err != nil {
			return err
		}
		if err := tx.Record(ctx, "force-delete", bundle.Kind, id, d.Scope, note); err != nil {
			return err
		}
		return tx.Remove(ctx, bundle.Kind, id, 0)
	})
	s.metrics.processed("force-delete", err)
	if err != nil || d.ID == "" {
		return err
	}
	for _, dl := range s.deliverers() {
		dl.forgetRemoved(d.Scope, id, d.Generation)
	}
	s.log.LogAttrs(ctx, slog.LevelWarn, "bundle ended by an operator without its agent's confirmation",
		slog.String("bundle", id),
		slog.String("consumer", d.Scope), slog.String("by", store.ActorFrom(ctx).Principal), slog.String("reason",
			reason))
	s.sendTombstone(ctx, d.Scope, ledger.Work{ID: id, Generation: d.Generation, Deleting: true})
	return nil
}

// sendTombstone sends an agent one order to delete a work that has a tombstone. When the
// order is lost, the agent's next comparison finds the tombstone.
func (s *Server) sendTombstone(ctx context.Context, consumer string, h ledger.Work) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := s.publish(ctx, consumer, wire.EncodeTombstone(consumer, h.ID, h.Generation, s.opts.SourceID,
		time.Now())); err != nil {
		s.log.LogAttrs(ctx, slog.LevelDebug, "order to delete a work not sent", slog.String("consumer", consumer),
			slog.String("bundle", h.ID), slog.Any("error", err))
	}
}
