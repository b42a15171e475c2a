package restapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/ledger"
	"atoll.dev/store"
)

func (h *handlers) postConsumer(w http.ResponseWriter, r *http.Request) error {
	var req api.ConsumerCreate
	if err := rest.ReadJSON(r, maxBody, &req); err != nil {
		return err
	}
	d, err := h.Records.CreateConsumer(r.Context(), req)
	if err != nil {
		return err
	}
	return rest.WriteVersioned(w, r, http.StatusCreated, d.Version, d.Wire)
}

func (h *handlers) getConsumer(w http.ResponseWriter, r *http.Request) error {
	d, err := h.find(r, bundle.ConsumerKind, "Consumer")
	if err != nil {
		return err
	}
	return h.writeConsumer(w, r, d)
}

func (h *handlers) patchConsumer(w http.ResponseWriter, r *http.Request) error {
	version, err := h.ifMatch(r, bundle.ConsumerKind, "Consumer")
	if err != nil {
		return err
	}
	var req api.ConsumerPatch
	if err := rest.ReadJSON(r, maxBody, &req); err != nil {
		return err
	}
	d, err := h.Records.PatchConsumer(r.Context(), r.PathValue("id"), version, req)
	if err != nil {
		return err
	}
	return h.writeConsumer(w, r, d)
}

func (h *handlers) writeConsumer(w http.ResponseWriter, r *http.Request, d store.Document) error {
	docs, err := h.consumerItems(r, []store.Document{d})
	if err != nil {
		return err
	}
	// Not WriteVersioned: observed members change without a new version, and an
	// answer of 304 would hide the change from the client.
	w.Header().Set("Etag", rest.ETag(d.Version))
	return rest.WriteJSON(w, http.StatusOK, docs[0])
}

func (h *handlers) deleteConsumer(w http.ResponseWriter, r *http.Request) error {
	version, err := h.ifMatch(r, bundle.ConsumerKind, "Consumer")
	if err != nil {
		return err
	}
	if err := h.Records.DeleteConsumer(r.Context(), r.PathValue("id"), version); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h *handlers) listConsumers(w http.ResponseWriter, r *http.Request) error {
	l, err := parseList(r, consumerFields)
	if err != nil {
		return err
	}
	return l.answer(w, r, h.Store, "ConsumerList", l.query(bundle.ConsumerKind),
		func(_ context.Context, docs []store.Document) ([]json.RawMessage, error) {
			return h.consumerItems(r, docs)
		})
}

// consumerItems returns the REST forms of consumers. A client that asks for extensions
// also gets the observed members.
func (h *handlers) consumerItems(r *http.Request, docs []store.Document) ([]json.RawMessage, error) {
	items, names := make([]json.RawMessage, len(docs)), make([]work.Consumer, len(docs))
	for i, d := range docs {
		items[i], names[i] = d.Wire, work.Consumer(d.Name)
	}
	if !wantsExtensions(r) {
		return items, nil
	}
	known, err := h.Ledger.HoldingsOf(r.Context(), h.Life(), names...)
	if err != nil {
		return nil, err
	}
	for i, d := range docs {
		if items[i], err = withObserved(d, known[work.Consumer(d.Name)]); err != nil {
			return nil, err
		}
	}
	return items, nil
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
