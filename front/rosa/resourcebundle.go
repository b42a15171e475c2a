package rosa

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/api/work"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

// This API shows a resource bundle as Maestro does, with masked Secrets.

// maxPage bounds a page of works or bundles.
const maxPage = 500

func (f *front) listBundles(w http.ResponseWriter, r *http.Request) error {
	if err := checkSearch(r); err != nil {
		return err
	}
	q := r.URL.Query()
	if v := q.Get("watch"); v != "" {
		watch, err := strconv.ParseBool(v)
		if err != nil {
			return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "watch=%s is neither true nor false", quote(v))
		}
		if watch {
			fields, err := parseFields(r)
			if err != nil {
				return err
			}
			return f.watchBundles(w, r, remote.WatchOptions{
				Cursor: q.Get("cursor"), Consumer: work.Consumer(q.Get("consumer")), ID: q.Get("id"), Search: q.Get("search"),
			}, fields)
		}
	}
	page, err := rest.ParsePage(r, rest.Page{Number: 1, Size: 100}, maxPage)
	if err != nil {
		return err
	}
	fields, err := parseFields(r)
	if err != nil {
		return err
	}
	doc, err := f.maestro.ListBundles(r.Context(), remote.ListOptions{
		Page: page.Number, Size: page.Size, Search: q.Get("search"), OrderBy: q.Get("orderBy"),
	})
	if err != nil {
		return err
	}
	shown, err := maskSecrets(doc.JSON)
	if err != nil {
		return err
	}
	if shown, err = selectOfItems(shown, fields); err != nil {
		return err
	}
	return rest.WriteJSON(w, http.StatusOK, shown)
}

// parseFields parses the parameter fields. Maestro does not get it: a Secret is recognised by its
// kind, so this API masks whole bundles and selects their members afterwards. Its errors have the
// code that Maestro gives them.
func parseFields(r *http.Request) (rest.Fields, error) {
	fields, err := rest.ParseFields(r)
	if e, ok := errors.AsType[*rest.Error](err); ok {
		return fields, rest.Errorf(e.Status, codeBadFields, "%s", e.Reason)
	}
	return fields, err
}

// selectOfItems returns a list with the selected members of each item.
func selectOfItems(list json.RawMessage, fields rest.Fields) (json.RawMessage, error) {
	if fields.All() {
		return list, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(list, &members); err != nil {
		return nil, fmt.Errorf("reading Maestro's list of bundles: %w", err)
	}
	items, err := fields.Select(members["items"])
	if err != nil {
		return nil, err
	}
	members["items"] = items
	return json.Marshal(members)
}

func (f *front) getBundle(w http.ResponseWriter, r *http.Request) error {
	id, err := bundleID(r)
	if err != nil {
		return err
	}
	doc, err := f.maestro.Bundle(r.Context(), work.ID(id))
	if err != nil {
		return replaceStatus(err, http.StatusNotFound, noBundle(id))
	}
	if doc.JSON, err = maskSecrets(doc.JSON); err != nil {
		return err
	}
	return write(w, http.StatusOK, doc)
}

func (f *front) deleteBundle(w http.ResponseWriter, r *http.Request) error {
	id, err := bundleID(r)
	if err != nil {
		return err
	}
	return f.remove(w, r, id, nounResourceBundle, noBundle(id))
}

func noBundle(id string) *rest.Error {
	return rest.Errorf(http.StatusNotFound, codeNotFound,
		"there is no resource bundle %s; GET /api/v0/resource_bundles lists those there are", quote(id))
}

// watchBundles relays Maestro's stream with its bookmarks and cursors. A stream
// that breaks ends the watch; the client continues with its cursor.
func (f *front) watchBundles(w http.ResponseWriter, r *http.Request, o remote.WatchOptions,
	fields rest.Fields) error {
	// Maestro sends a bookmark every 15 s; this one is sent when none comes.
	return rest.Watch(w, r, rest.WatchOptions{Bookmark: 20 * time.Second}, func(ctx context.Context,
		s *rest.Stream) error {
		upstream, err := f.maestro.WatchBundles(ctx, o)
		if err != nil {
			return err
		}
		defer upstream.Close()
		if err := s.Open(o.Cursor); err != nil {
			return err
		}
		for {
			e, err := upstream.Next()
			if err != nil {
				return streamError(err)
			}
			if e.Type == rest.Failed {
				return watchError(e.Object)
			}
			if e.Object, err = maskSecrets(e.Object); err != nil {
				return err
			}
			if e.Object, err = fields.Select(e.Object); err != nil {
				return err
			}
			if err := s.Send(e); err != nil {
				return err
			}
		}
	})
}

// streamError returns the answer when the stream of Maestro ends: 503.
func streamError(err error) error {
	e := rest.Errorf(http.StatusServiceUnavailable, codeUnavailable,
		"Maestro's stream broke; watch again with the last cursor").Because(err)
	if errors.Is(err, io.EOF) {
		e.Reason = "Maestro's stream ended; watch again with the last cursor"
	}
	e.RetryAfter = time.Second
	return e
}

// watchError gives the ERROR event of Maestro the answer of this API.
func watchError(object json.RawMessage) error {
	var e platform.Error
	if err := json.Unmarshal(object, &e); err != nil || e.Reason == "" {
		return streamError(err)
	}
	if e.Code == "maestro-410" {
		return rest.Errorf(http.StatusGone, codeGone, "%s", e.Reason)
	}
	r := rest.Errorf(http.StatusServiceUnavailable, e.Code, "%s", e.Reason)
	r.RetryAfter = time.Second
	return r
}
