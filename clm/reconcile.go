package clm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	api "atoll.dev/api/clm"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// RequestKind is the store's kind of requests for events. The spec of such a document is an
// api.ReconcileRequest. Followers of the feed act on it once. CLM removes it after requestMemory.
const RequestKind store.Kind = "Request"

// requestMemory is how long a request for events stays in the feed.
const requestMemory = 24 * time.Hour

// reconcile requests an event for one resource, in any state.
func (c *collection) reconcile(w http.ResponseWriter, r *http.Request) error {
	wanted, err := readReconcile(r)
	if err != nil {
		return err
	}
	a, d, err := c.read(r)
	if err != nil {
		return err
	}
	if wanted.Kind != "" && wanted.Kind != a.entity.Kind {
		return fieldError(http.StatusBadRequest, codeValidation, "kind", "enum", "must be that of the resource, "+
			a.entity.Kind)
	}
	return c.s.request(w, r, api.ReconcileRequest{Kind: a.entity.Kind, ID: d.ID, Reason: wanted.Reason}, d.Scope)
}

// reconcileAll requests an event for each resource, of one kind or of all.
func (s *Server) reconcileAll(w http.ResponseWriter, r *http.Request) error {
	wanted, err := readReconcile(r)
	if err != nil {
		return err
	}
	if wanted.Kind != "" && s.registry.byKind[wanted.Kind] == nil {
		return fieldError(http.StatusBadRequest, codeValidation, "kind", "enum", "is unknown: "+shorten(wanted.Kind))
	}
	return s.request(w, r, api.ReconcileRequest{Kind: wanted.Kind, Reason: wanted.Reason}, "")
}

// readReconcile reads the body of a request for events, which may be absent.
func readReconcile(r *http.Request) (wanted api.ReconcileAsk, err error) {
	if err = rest.ReadJSON(r, maxBody, &wanted); errors.Is(err, rest.ErrEmpty) {
		err = nil
	}
	if err == nil && utf8.RuneCountInString(wanted.Reason) > maxReason {
		err = fieldError(http.StatusBadRequest, codeValidation, "reason", "max_length",
			fmt.Sprintf("must have at most %d characters", maxReason))
	}
	return wanted, err
}

// request stores a request for events, which the feed brings to its followers. The history
// of the request, and of the resource if it names one, records the caller.
func (s *Server) request(w http.ResponseWriter, r *http.Request, req api.ReconcileRequest, scope string) error {
	req.RequestedTime = time.Now().UTC().Truncate(time.Microsecond)
	spec, err := json.Marshal(req)
	if err != nil {
		return err
	}
	ctx := r.Context()
	id := uuid.Must(uuid.NewV7()).String()
	err = s.store.Tx(ctx, func(tx *store.Tx) error {
		if _, err := tx.Create(ctx, store.Document{Kind: RequestKind, ID: id, Spec: spec,
			CreatedAt: req.RequestedTime}); err != nil || req.ID == "" {
			return err
		}
		return tx.Record(ctx, "reconcile", store.Kind(req.Kind), req.ID, scope,
			raw(map[string]string{"request": id, "reason": req.Reason}))
	})
	if err != nil {
		return err
	}
	return rest.WriteJSON(w, http.StatusAccepted, req)
}

// forgetRequests removes requests that are older than requestMemory.
func (s *Server) forgetRequests(ctx context.Context, now time.Time) error {
	for {
		page, err := s.store.List(ctx, store.Query{
			Kind: RequestKind, Where: store.Fragment{SQL: "d.created_at < $1",
				Args: []any{now.Add(-requestMemory)}}, Limit: 100,
		})
		if err != nil {
			return err
		}
		for _, d := range page.Documents {
			if err := s.store.Remove(ctx, RequestKind, d.ID, 0); err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
		}
		if page.Next == "" {
			return nil
		}
	}
}
