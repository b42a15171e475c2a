package clm

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"

	api "atoll.dev/api/clm"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// history answers with the records of changes of a resource: caller, time and change. On
// paths that name the kind, operators can read the history of removed resources, too.
func (c *collection) history(w http.ResponseWriter, r *http.Request) error {
	q, err := parseHistory(r)
	if err != nil {
		return err
	}
	a := address{entity: c.entity, id: r.PathValue("id")}
	mustExist := a.entity == nil || callerOf(r.Context()).Tenancy != nil || c.nested
	if mustExist { // only an existing resource has a kind, a tenancy and an owner
		if a, _, err = c.read(r); err != nil {
			return err
		}
	}
	q.Kind, q.ID = a.entity.storeKind(), a.id
	records, err := c.s.store.History(r.Context(), q)
	if err != nil {
		return err
	}
	if len(records) == 0 && q.Before == 0 && !mustExist {
		// A resource without a change since HistoryMemory has no records.
		if _, _, err := c.read(r); err != nil {
			return err
		}
	}
	return writeHistory(w, records)
}

// kindHistory answers with the records of changes of a kind, or of all kinds.
func (c *collection) kindHistory(w http.ResponseWriter, r *http.Request) error {
	q, err := parseHistory(r)
	if err != nil {
		return err
	}
	for _, e := range c.s.registry.entities {
		if c.entity == nil || c.entity == e {
			q.Kinds = append(q.Kinds, e.storeKind())
		}
	}
	records, err := c.s.store.History(r.Context(), q)
	if err != nil {
		return err
	}
	return writeHistory(w, records)
}

// parseHistory reads the parameters that select records.
func parseHistory(r *http.Request) (q store.HistoryQuery, err error) {
	page, err := parsePage(r)
	if err != nil {
		return q, err
	}
	q.Limit = page.Size
	if text := r.URL.Query().Get("before"); text != "" {
		if q.Before, err = strconv.ParseInt(text, 10, 64); err != nil || q.Before < 1 {
			return q, rest.Errorf(http.StatusBadRequest, codeBadRequest, "before=%s is not the seq of a record",
				shorten(text))
		}
	}
	return q, nil
}

func writeHistory(w http.ResponseWriter, records []store.Record) error {
	h := api.History{Items: []api.HistoryRecord{}}
	for _, record := range records {
		h.Items = append(h.Items, api.HistoryRecord{
			Seq: record.Seq, Kind: string(record.Kind), ID: record.ID, Time: record.At, Action: record.Action,
			Generation: int32(record.Generation), Principal: record.Actor.Principal,
			RequestID: record.Actor.RequestID, Spec: withoutTrace(record.Spec),
			Status: withoutRecent(record.Status), Note: record.Note,
		})
	}
	return rest.WriteJSON(w, http.StatusOK, h)
}

// withoutTrace returns a stored spec without its traceparent, which no answer shows.
func withoutTrace(spec json.RawMessage) json.RawMessage {
	var members map[string]json.RawMessage
	if !bytes.Contains(spec, []byte(`"traceparent"`)) || json.Unmarshal(spec, &members) != nil {
		return spec
	}
	delete(members, "traceparent")
	return raw(members)
}

// withoutRecent returns a stored status without the recent reports in its reports, which
// no answer shows.
func withoutRecent(text json.RawMessage) json.RawMessage {
	var seen observed
	if !bytes.Contains(text, []byte(`"recent"`)) || json.Unmarshal(text, &seen) != nil {
		return text
	}
	for i := range seen.Reports {
		seen.Reports[i].Recent = nil
	}
	return raw(seen)
}
