package clm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"atoll.dev/clm/status"
	"atoll.dev/internal/jsonscan"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// statuses lists the reports of a resource's adapters, or watches them.
func (c *collection) statuses(w http.ResponseWriter, r *http.Request) error {
	page, err := parsePage(r)
	if err != nil {
		return err
	}
	watching, err := watches(r)
	if err != nil {
		return err
	}
	_, d, err := c.read(r)
	if err != nil {
		return err
	}
	if watching {
		return c.watchStatuses(w, r, d)
	}
	reports, err := reportsOf(d)
	if err != nil {
		return err
	}
	from := min(int(page.Offset()), len(reports))
	items := reports[from:min(from+page.Size, len(reports))]
	return rest.WriteJSON(w, http.StatusOK, struct {
		Items []status.Report `json:"items"`
		Page  int             `json:"page"`
		Size  int             `json:"size"`
		Total int             `json:"total"`
	}{append([]status.Report{}, items...), page.Number, len(items), len(reports)})
}

// reportsOf returns the reports of a resource, as they are shown.
func reportsOf(d store.Document) ([]status.Report, error) {
	seen, err := observedOf(d)
	if err != nil {
		return nil, err
	}
	reports := slices.Clone(seen.Reports)
	for i, r := range reports {
		reports[i] = withoutInternals(r)
	}
	return reports, nil
}

// appendReports appends the reports of a resource, as they are shown, as a JSON array.
func appendReports(b []byte, d store.Document) ([]byte, error) {
	b = append(b, '[')
	begin, s := len(b), jsonscan.New(d.Status)
	s.Object(func(key string) {
		if key != "reports" {
			s.Skip()
			return
		}
		s.Array(func() {
			if len(b) > begin {
				b = append(b, ',')
			}
			b = status.AppendShown(b, s)
		})
	})
	if err := s.End(); err != nil {
		return nil, fmt.Errorf("reading the reports on %s %s: %w", d.Kind, d.ID, err)
	}
	return append(b, ']'), nil
}

// withoutInternals returns a report without the members that only the server needs. The
// contract shows data even when there are none.
func withoutInternals(r status.Report) status.Report {
	r.Recent = nil
	if len(r.Data) == 0 {
		r.Data = json.RawMessage("{}")
	}
	return r
}

// watchStatuses streams the changes of a resource's reports. Like watches of resources, it
// does not send a report that differs only in its times. When the resource is removed, it
// sends the reports as deleted. A watch that continues from a cursor gets all reports with
// the first change.
func (c *collection) watchStatuses(w http.ResponseWriter, r *http.Request, d store.Document) error {
	cursor := r.URL.Query().Get("cursor")
	watch := store.Watch{
		Query: store.Query{Kind: d.Kind, Where: store.Fragment{SQL: "d.id = $1", Args: []any{d.ID}},
			Deletion: store.WithDeleting},
		From:  store.Cursor(cursor),
		Match: func(change *store.Change) bool { return change.Kind == d.Kind && change.ID == d.ID },
	}
	return rest.Watch(w, r, c.s.watchOptions(r), func(ctx context.Context, stream *rest.Stream) error {
		var known []status.Report
		err := c.s.feed.Watch(ctx, watch, func() error { return stream.Open(cursor) }, func(sight store.WatchEvent) error {
			switch {
			case sight.Kind == store.Progress:
				stream.Advance(string(sight.Cursor))
				return nil
			case sight.Change == nil:
				return stream.Send(rest.Event{Type: rest.Bookmark, Cursor: string(sight.Cursor)})
			}
			now, err := reportsOf(sight.Change.Document)
			if err != nil {
				return err
			}
			events := differences(known, now, sight.Kind)
			if known = now; len(events) == 0 && sight.Cursor != "" {
				stream.Advance(string(sight.Cursor))
			}
			for i, e := range events {
				if i == len(events)-1 { // before, a watch from there would miss the rest
					e.Cursor = string(sight.Cursor)
				}
				if err := stream.Send(e); err != nil {
					return err
				}
			}
			return nil
		})
		if errors.Is(err, store.ErrTooSlow) {
			return rest.Errorf(http.StatusServiceUnavailable, codeUnavailable,
				"the watch fell behind; continue from its last cursor")
		}
		return err
	})
}

// differences returns the events from one state of a resource's reports to the next. When the feed shows the resource
// as gone, all its reports are deleted.
func differences(was, now []status.Report, kind store.WatchEventKind) (events []rest.Event) {
	for _, r := range now {
		i := slices.IndexFunc(was, func(old status.Report) bool { return old.Adapter == r.Adapter })
		switch {
		case kind == store.Gone:
			events = append(events, rest.Event{Type: rest.Deleted, Object: raw(r)})
		case i < 0:
			events = append(events, rest.Event{Type: rest.Added, Object: raw(r)})
		case !status.SameButTimes(was[i:i+1], []status.Report{r}, nil, nil):
			events = append(events, rest.Event{Type: rest.Modified, Object: raw(r)})
		}
	}
	return events
}
