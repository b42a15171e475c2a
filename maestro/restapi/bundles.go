package restapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/records"
	"atoll.dev/store"
)

func (h *handlers) listBundles(w http.ResponseWriter, r *http.Request) error {
	watch, err := parseWatch(r)
	if err != nil {
		return err
	}
	if watch {
		return h.watchBundles(w, r)
	}
	l, err := parseList(r, bundleFields)
	if err != nil {
		return err
	}
	return l.answer(w, r, h.Store, "ResourceBundleList", l.query(bundle.Kind),
		func(_ context.Context, docs []store.Document) ([]json.RawMessage, error) {
			items := make([]json.RawMessage, len(docs))
			for i, d := range docs {
				items[i] = d.Wire
			}
			return items, nil
		})
}

func (h *handlers) getBundle(w http.ResponseWriter, r *http.Request) error {
	fields, err := rest.ParseFields(r)
	if err != nil {
		return err
	}
	d, err := h.find(r, bundle.Kind, "ResourceBundle")
	if err != nil {
		return err
	}
	doc := json.RawMessage(d.Wire)
	if wantsExtensions(r) {
		dl, err := h.Ledger.DeliveryOf(r.Context(), work.ID(d.ID))
		if err != nil {
			return err
		}
		if doc, err = withDelivery(d.Wire, dl); err != nil {
			return err
		}
	}
	if doc, err = fields.Select(doc); err != nil {
		return err
	}
	w.Header().Set("Etag", rest.ETag(d.Version))
	return rest.WriteJSON(w, http.StatusOK, doc)
}

// withDelivery adds the member "delivery" to a rendered bundle.
func withDelivery(wire []byte, dl *api.Delivery) (json.RawMessage, error) {
	member, err := json.Marshal(dl)
	if err != nil {
		return nil, err
	}
	doc := make([]byte, 0, len(wire)+len(member)+16)
	doc = append(doc, wire[:len(wire)-1]...) // up to the closing brace
	doc = append(doc, `,"delivery":`...)
	doc = append(doc, member...)
	return append(doc, '}'), nil
}

func (h *handlers) deleteBundle(w http.ResponseWriter, r *http.Request) error {
	version, err := h.ifMatch(r, bundle.Kind, "ResourceBundle")
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
		err = h.Records.DeleteBundle(r.Context(), work.ID(r.PathValue("id")), version)
	} else {
		var reason string
		if reason, err = reasonFrom(q, "a bundle is ended without its agent's confirmation"); err != nil {
			return err
		}
		err = h.Records.ForceDelete(r.Context(), work.ID(r.PathValue("id")), version, reason)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// reasonFrom reads the operator's reason for an action that cannot be undone.
func reasonFrom(q url.Values, what string) (string, error) {
	reason := strings.TrimSpace(q.Get("reason"))
	switch {
	case reason == "":
		return "", apierror.Invalid("reason is missing; the record has to have why %s", what)
	case len(reason) > records.MaxReason:
		return "", apierror.Invalid("reason has %d bytes, at most %d are possible", len(reason), records.MaxReason)
	}
	return reason, nil
}

// wantsExtensions reports whether the client asks for members that answers of the
// original Maestro do not have (docs/decisions/039).
func wantsExtensions(r *http.Request) bool {
	yes, err := strconv.ParseBool(r.Header.Get(api.ExtensionsHeader))
	return err == nil && yes
}
