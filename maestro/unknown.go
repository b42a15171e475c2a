package maestro

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/wire"
	"atoll.dev/search"
	"atoll.dev/store"
)

// Unknown works are works that agents hold and that have no bundle, after the database
// was lost or restored (I8, docs/decisions/022). They stay applied. A source adopts an
// unknown work when it creates a bundle of the same id (adopt in bundles.go). An
// operator can make the server adopt the work for a source, with the content that its
// agent holds, or delete it.

// unknownFields are the fields by which clients search and order unknown works.
var unknownFields = search.Schema{Table: "unknown_works", Fields: map[string]search.Field{
	"id":            {SQL: "w.id", Type: search.Text},
	"consumer_name": {SQL: "w.consumer", Type: search.Text},
	"version":       {SQL: "w.generation", Type: search.Int},
	"first_seen_at": {SQL: "w.first_seen", Type: search.Time},
}}

func (s *Server) listUnknown(w http.ResponseWriter, r *http.Request) error {
	l, err := parseList(r, unknownFields)
	if err != nil {
		return err
	}
	where, order := l.filter.SQL(), "w.first_seen, w.consumer, w.id"
	if r.URL.Query().Get("orderBy") != "" {
		order = ""
		for _, o := range l.order {
			order += o.Expr
			if o.Desc {
				order += " desc"
			}
			order += ", "
		}
		order += "w.consumer, w.id"
	}
	if where.SQL == "" {
		where.SQL = "true"
	}
	list := api.UnknownWorkList{Kind: "UnknownWorkList", Page: l.page}
	err = s.store.Read(r.Context(), func(ctx context.Context, c *pgx.Conn) error {
		list.Items = []api.UnknownWork{}
		both := &pgx.Batch{} // one round trip
		both.Queue(`select count(*) from unknown_work w where `+where.SQL, where.Args...)
		both.Queue(fmt.Sprintf(`select w.consumer, w.id, w.generation, w.first_seen, w.adopt_source
			from unknown_work w where %s order by %s limit %d offset %d`,
			where.SQL, order, l.size, (l.page-1)*l.size), where.Args...)
		results := c.SendBatch(ctx, both)
		defer results.Close()
		if err := results.QueryRow().Scan(&list.Total); err != nil {
			return err
		}
		rows, err := results.Query()
		if err != nil {
			return err
		}
		var u api.UnknownWork
		_, err = pgx.ForEachRow(rows, []any{&u.ConsumerName, &u.ID, &u.Version, &u.FirstSeenAt, &u.AdoptingFor},
			func() error {
				u.Kind, u.Href = "UnknownWork", unknownPath(u.ConsumerName, u.ID)
				u.FirstSeenAt = u.FirstSeenAt.UTC()
				list.Items = append(list.Items, u)
				return nil
			})
		return err
	})
	if err != nil {
		return err
	}
	list.Size = len(list.Items)
	return rest.WriteJSON(w, http.StatusOK, list)
}

func unknownPath(consumer, id string) string {
	return api.BasePath + "/unknown-works/" + url.PathEscape(consumer) + "/" + url.PathEscape(id)
}

// deleteUnknown orders an agent to delete an unknown work. A tombstone replaces the
// unknown work, so that comparisons repeat the order until the agent has confirmed.
func (s *Server) deleteUnknown(w http.ResponseWriter, r *http.Request) error {
	reason, err := reasonFrom(r.URL.Query(), "a work is deleted that no source has asked to delete")
	if err != nil {
		return err
	}
	if err := s.accepting(); err != nil {
		return err
	}
	ctx, consumer, id := r.Context(), r.PathValue("consumer"), r.PathValue("id")
	note, err := json.Marshal(map[string]string{"reason": reason})
	if err != nil {
		return err
	}
	var generation int64
	found := false
	err = s.store.Tx(ctx, func(tx *store.Tx) error {
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
		return tx.Record(ctx, "delete-unknown", bundle.Kind, id, consumer, note)
	})
	s.metrics.processed("delete-unknown", err)
	if err != nil {
		return err
	}
	if found {
		s.log.LogAttrs(ctx, slog.LevelWarn, "unknown work is deleted by an operator", slog.String("bundle", id),
			slog.String("consumer", consumer),
			slog.String("by", store.ActorFrom(ctx).Principal), slog.String("reason", reason))
		s.sendTombstone(ctx, consumer, ledger.Work{ID: id, Generation: generation, Deleting: true})
		s.unknownChanged()
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// adoptWait is how long a request to adopt waits for the agent's answer.
const adoptWait = 5 * time.Second

// adoptUnknown creates a bundle for an unknown work, with the source of the request and
// the content that the agent holds. It records the request and asks the agent for the
// content; the server that receives the answer, now or when the agent is back, creates
// the bundle. The answer is 201 with the bundle, or 202 when the agent has not answered
// within adoptWait.
func (s *Server) adoptUnknown(w http.ResponseWriter, r *http.Request) error {
	var req api.Adoption
	if err := rest.ReadJSON(r, maxBody, &req); err != nil {
		return err
	}
	switch {
	case req.Source == "":
		return apierror.Invalid("source is missing; it is the source that is to own the bundle")
	case len(req.Source) > wire.MaxSource:
		return apierror.Invalid("source has %d bytes, at most %d are possible", len(req.Source), wire.MaxSource)
	case len(req.Reason) > maxReason:
		return apierror.Invalid("reason has %d bytes, at most %d are possible", len(req.Reason), maxReason)
	}
	if err := s.accepting(); err != nil {
		return err
	}
	ctx, consumer, id := r.Context(), r.PathValue("consumer"), r.PathValue("id")
	u := api.UnknownWork{Kind: "UnknownWork", ID: id, Href: unknownPath(consumer, id), ConsumerName: consumer,
		AdoptingFor: req.Source}
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
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
			return rest.Errorf(
				http.StatusNotFound,
				apierror.CodeNotFound,
				"consumer %s has no unknown work %s",
				consumer,
				id,
			)
		}
		return err
	})
	if err != nil {
		return err
	}
	sub := s.feed.Subscribe(func(c *store.Change) bool {
		return c.Kind == bundle.Kind && c.ID == id &&
			c.Scope == consumer
	})
	defer sub.Close()
	s.askSpecs(ctx, consumer, []string{id})
	wait, cancel := context.WithTimeout(ctx, adoptWait)
	defer cancel()
	for {
		d, err := s.store.Get(ctx, bundle.Kind, id)
		if err == nil && d.Scope == consumer {
			return rest.WriteVersioned(w, r, http.StatusCreated, d.Version, d.Wire)
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if _, err := sub.Next(wait); err != nil {
			break
		}
	}
	u.FirstSeenAt = u.FirstSeenAt.UTC()
	return rest.WriteJSON(w, http.StatusAccepted, u)
}

// askSpecs asks an agent for the content of works that it holds. Agents of Open Cluster
// Management ignore the request.
func (s *Server) askSpecs(ctx context.Context, consumer string, ids []string) {
	data, err := json.Marshal(work.SpecsWanted{IDs: ids})
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err = s.publish(ctx, consumer, bus.Event{
		DataContentType: wire.JSONType,
		ID:              uuid.NewString(),
		Source:          s.opts.SourceID,
		Type:            work.ServerSpecs,
		Time:            time.Now().UTC(),
		Extensions:      map[string]string{work.ExtClusterName: consumer},
		Data:            data,
	})
	if err != nil {
		s.log.LogAttrs(ctx, slog.LevelDebug, "agent not asked for its works", slog.String("consumer", consumer),
			slog.Any("error", err))
	}
}

// askAdoptions asks an agent again for the works that operators want adopted.
func (s *Server) askAdoptions(ctx context.Context, consumer string) error {
	var ids []string
	err := s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(
			ctx,
			`select id from unknown_work where consumer = $1 and adopt_source <> '' order by id limit 100`,
			consumer,
		)
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err == nil && len(ids) > 0 {
		s.askSpecs(ctx, consumer, ids)
	}
	return err
}

// adoptHeldSpec creates a bundle from the content that an agent holds, if an operator
// has asked for it. Otherwise it changes nothing: an agent decides no spec (I7).
func (s *Server) adoptHeldSpec(ctx context.Context, consumer string, m bus.Event) error {
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
	if _, err := bundle.CheckData(h.Bundle); err != nil {
		return err
	}
	now := time.Now().UTC()
	r := bundle.Spec{
		EventID: m.ID, SpecVersion: "1.0", Type: work.SpecCreate, Time: &now, ContentType: "application/json",
		Consumer: consumer, ID: h.ID, Version: 1, Metadata: metadata, Data: h.Bundle,
	}
	adopted := false
	err = s.store.Tx(ctx, func(tx *store.Tx) error {
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
		if _, err := s.create(ctx, tx, r); err != nil {
			return err
		}
		adopted = true
		note, err := json.Marshal(map[string]string{"reason": reason, "source": r.Source})
		if err != nil {
			return err
		}
		return tx.Record(ctx, "adopt-unknown", bundle.Kind, h.ID, consumer, note)
	})
	if err != nil {
		return fmt.Errorf("adopting work %s of %s: %w", h.ID, consumer, err)
	}
	if adopted {
		s.log.LogAttrs(ctx, slog.LevelInfo, "unknown work adopted", slog.String("bundle", h.ID),
			slog.String("consumer", consumer), slog.String("source", r.Source))
		s.unknownChanged()
	}
	return nil
}

// unknownChanged makes runUnknownGauge count the unknown works again within seconds. One
// count serves many comparisons: after a restore all agents compare at the same time.
func (s *Server) unknownChanged() { s.unknownStale.Store(true) }

// runUnknownGauge updates the gauge of unknown works until ctx ends: after changes by this
// server, and every unknownEvery for changes by other servers.
func (s *Server) runUnknownGauge(ctx context.Context) error {
	tick := time.NewTicker(gaugeInterval)
	defer tick.Stop()
	var counted time.Time
	for {
		if s.unknownStale.Swap(false) || time.Since(counted) >= unknownEvery {
			counted = time.Now()
			if err := s.countUnknown(ctx); err != nil && ctx.Err() == nil {
				s.unknownStale.Store(true)
				s.log.LogAttrs(ctx, slog.LevelDebug, "unknown works not counted", slog.Any("error", err))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// unknownEvery is the longest time between two counts of unknown works.
const unknownEvery = time.Minute

func (s *Server) countUnknown(ctx context.Context) error {
	var n int64
	err := s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, `select count(*) from unknown_work`).Scan(&n)
	})
	if err == nil {
		s.metrics.unknown.Set(float64(n))
	}
	return err
}
