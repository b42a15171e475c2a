// Package auditfeed reads the audit records of a service's database, and serves them over HTTP to the Platform API,
// which gathers the records of all services.
//
// A read waits until there are records after its cursor, so that the Platform API has a record soon without frequent
// requests. The package is a tool: it knows no service.
package auditfeed

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"atoll.dev/api/audit"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// Bounds of a read.
const (
	maxLimit = 1000
	maxWait  = 20 * time.Second
)

var errStopping = errors.New("the server stops")

// Read returns audit records of a database after a cursor. If there are none, it waits for one, for at most wait, and
// then returns a page without records. Its errors are those of store.Store.ListAudit.
func Read(ctx context.Context, s *store.Store, after string, limit int, wait time.Duration) (audit.Page, error) {
	page, err := s.WaitForAudit(ctx, after, limit, wait)
	if err != nil {
		return audit.Page{}, err
	}
	out := audit.Page{Items: []audit.Change{}, Next: page.Next}
	for _, r := range page.Records {
		out.Items = append(
			out.Items,
			audit.Change{Key: r.RecordID, Time: r.At, Change: r.Action, Kind: string(r.Kind), ID: r.ID,
				Version: r.Version, Principal: r.Actor.Principal, Account: r.Actor.Account, Owner: r.Owner,
				RequestID: r.Actor.RequestID, Request: json.RawMessage(r.Actor.Audit), Before: r.Before, After: r.After},
		)
	}
	return out, nil
}

// Handler serves GET with the parameters after (a cursor), limit and wait (seconds). It does not authorize: the caller
// registers it for permitted readers only.
func Handler(s *store.Store) rest.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		q := r.URL.Query()
		limit, err := parseNumber(q.Get("limit"), maxLimit)
		if err != nil {
			return err
		}
		wait, err := parseNumber(q.Get("wait"), int(maxWait/time.Second))
		if err != nil {
			return err
		}
		// When the server begins to stop, waiting requests end at once.
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		defer context.AfterFunc(rest.Stopping(ctx), func() { cancel(errStopping) })()
		page, err := Read(ctx, s, q.Get("after"), max(1, limit), time.Duration(wait)*time.Second)
		switch {
		case errors.Is(err, errStopping):
			return rest.Errorf(http.StatusServiceUnavailable, "stopping", "the server is stopping; try again")
		case errors.Is(err, store.ErrInvalid):
			return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "after is not a cursor of this feed")
		case err != nil:
			return err
		}
		return rest.WriteJSON(w, http.StatusOK, page)
	}
}

// parseNumber parses a parameter from 0 to most; the default is most.
func parseNumber(text string, most int) (int, error) {
	if text == "" {
		return most, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > most {
		return 0, rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "limit is from 1 to %d, wait from 0 to %d seconds",
			maxLimit, int(maxWait/time.Second))
	}
	return n, nil
}
