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

// history answers who changed a resource, when, and what. It outlives the
// resource, for those who name its kind in the path.
func (c *collection) history(w http.ResponseWriter, r *http.Request) error {
	page, err := parsePage(r)
	if err != nil {
		return err
	}
	before := int64(0)
	if text := r.URL.Query().Get("before"); text != "" {
		if before, err = strconv.ParseInt(text, 10, 64); err != nil || before < 1 {
			return rest.Errorf(http.StatusBadRequest, codeBadRequest, "before=%s is not the seq of a record", shorten(text))
		}
	}
	a := address{entity: c.entity, id: r.PathValue("id")}
	if a.entity == nil || callerOf(r.Context()).Tenancy != nil || c.nested {
		// What is gone cannot say whose it was.
		if a, _, err = c.read(r); err != nil {
			return err
		}
	}
	records, err := c.s.store.History(r.Context(), store.HistoryQuery{Kind: a.entity.storeKind(), ID: a.id, Before: before, Limit: page.Size})
	if err != nil {
		return err
	}
	if len(records) == 0 && before == 0 {
		return missing(a.entity, a.id)
	}
	h := api.History{Items: []api.HistoryRecord{}}
	for _, record := range records {
		h.Items = append(h.Items, api.HistoryRecord{
			Seq: record.Seq, Time: record.At, Action: record.Action, Generation: int32(record.Generation),
			Principal: record.Actor.Principal, RequestID: record.Actor.RequestID, Spec: untraced(record.Spec), Status: record.Status, Note: record.Note,
		})
	}
	return rest.WriteJSON(w, http.StatusOK, h)
}

// untraced is a stored spec without its place in a trace, which no answer has.
func untraced(spec json.RawMessage) json.RawMessage {
	var members map[string]json.RawMessage
	if !bytes.Contains(spec, []byte(`"traceparent"`)) || json.Unmarshal(spec, &members) != nil {
		return spec
	}
	delete(members, "traceparent")
	return raw(members)
}
