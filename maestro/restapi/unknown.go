package restapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/bundle"
	"atoll.dev/search"
	"atoll.dev/store"
)

// unknownFields are the fields by which clients search and order unknown works.
var unknownFields = search.Schema{Table: "unknown_works", Limits: searchLimits, Fields: map[string]search.Field{
	"id":            {SQL: "w.id", Type: search.Text},
	"consumer_name": {SQL: "w.consumer", Type: search.Text},
	"version":       {SQL: "w.generation", Type: search.Int},
	"first_seen_at": {SQL: "w.first_seen", Type: search.Time},
}}

func (h *handlers) listUnknown(w http.ResponseWriter, r *http.Request) error {
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
	err = h.Store.Read(r.Context(), func(ctx context.Context, c *pgx.Conn) error {
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
				u.Kind, u.Href = "UnknownWork", unknownPath(work.Consumer(u.ConsumerName), work.ID(u.ID))
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

func unknownPath(consumer work.Consumer, id work.ID) string {
	return api.BasePath + "/unknown-works/" + url.PathEscape(string(consumer)) + "/" + url.PathEscape(string(id))
}

// deleteUnknown orders an agent to delete an unknown work.
func (h *handlers) deleteUnknown(w http.ResponseWriter, r *http.Request) error {
	reason, err := reasonFrom(r.URL.Query(), "a work is deleted that no source has asked to delete")
	if err != nil {
		return err
	}
	consumer, id := work.Consumer(r.PathValue("consumer")), work.ID(r.PathValue("id"))
	if err := h.Records.DeleteUnknown(r.Context(), consumer, id, reason); err != nil {
		return err
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
func (h *handlers) adoptUnknown(w http.ResponseWriter, r *http.Request) error {
	var req api.Adoption
	if err := rest.ReadJSON(r, maxBody, &req); err != nil {
		return err
	}
	ctx, consumer, id := r.Context(), work.Consumer(r.PathValue("consumer")), work.ID(r.PathValue("id"))
	u, err := h.Records.RequestAdoption(ctx, consumer, id, req)
	if err != nil {
		return err
	}
	sub := h.Feed.Subscribe(func(c *store.Change) bool {
		return c.Kind == bundle.Kind && c.ID == string(id) && c.Scope == string(consumer)
	})
	defer sub.Close()
	h.AskSpecs(ctx, consumer, []work.ID{id})
	wait, cancel := context.WithTimeout(ctx, adoptWait)
	defer cancel()
	for {
		d, err := h.Store.Get(ctx, bundle.Kind, string(id))
		if err == nil && d.Scope == string(consumer) {
			return rest.WriteVersioned(w, r, http.StatusCreated, d.Version, d.Wire)
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if _, err := sub.Next(wait); err != nil {
			break
		}
	}
	u.Kind, u.Href = "UnknownWork", unknownPath(consumer, id)
	return rest.WriteJSON(w, http.StatusAccepted, u)
}
