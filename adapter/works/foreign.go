package works

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"atoll.dev/api/maestro"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
)

// isForeign asks the server, until it answers, whether it is one that knows
// Atoll's additions. Asking the original for a watch is no way to find out: it
// answers a list, or breaks.
func (w *Works) isForeign(ctx context.Context) (bool, error) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		_, err := w.client.UnknownWorks(ctx, remote.ListOptions{Size: 1})
		switch status := remote.StatusOf(err); {
		case err == nil:
			w.mu.Lock()
			w.foreign = false // it may have been replaced
			w.mu.Unlock()
			return false, nil
		case status == http.StatusNotFound:
			return true, nil
		case status >= 400 && status < 500 && status != http.StatusTooManyRequests:
			return false, err
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// followStatuses is Watch by the stream that every Maestro has. It says nothing
// of what happens while it is interrupted, so each time it stands all works are
// listed and compared.
func (w *Works) followStatuses(ctx context.Context, s *watching) error {
	list := func() error {
		s.mu.Lock()
		s.relist()
		s.mu.Unlock()
		for page := 1; ; page++ {
			doc, err := w.client.ListBundles(ctx, remote.ListOptions{Page: page, Size: pageSize, Search: remote.Equal(
				"source", w.client.Source())})
			if err != nil {
				// The stream stands, so the server lives; the next one lists again.
				w.log.Warn("works could not be listed", "error", err)
				return nil
			}
			var list struct {
				Items []bundleMeta `json:"items"`
			}
			if err := json.Unmarshal(doc.JSON, &list); err != nil {
				return fmt.Errorf("reading Maestro's list of works: %w", err)
			}
			s.mu.Lock()
			for _, b := range list.Items {
				s.see(b)
			}
			last := len(list.Items) < pageSize
			if last {
				s.complete()
			}
			s.mu.Unlock()
			if last {
				return nil
			}
		}
	}
	return w.client.FollowStatuses(ctx, list, func(b maestroclient.BundleStatus) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if b.Deleted {
			s.gone(b.ID)
			return nil
		}
		next := bundleMeta{ID: b.ID, Version: b.Version}
		if len(b.Metadata) == 0 || json.Unmarshal(b.Metadata, &next.Metadata) != nil {
			if k, known := s.known[b.ID]; known {
				s.changed(k.event)
			}
			return nil
		}
		shown := maestro.ResourceBundleStatus{ObservedVersion: b.Version}
		var err error
		if shown.Conditions, err = raws(b.Status.Conditions); err != nil {
			return err
		}
		if shown.ResourceStatus, err = raws(b.Status.ResourceStatus); err != nil {
			return err
		}
		if next.Status, err = json.Marshal(shown); err != nil {
			return err
		}
		s.see(next)
		return nil
	})
}

func raws[T any](items []T) ([]json.RawMessage, error) {
	var all []json.RawMessage
	for _, item := range items {
		raw, err := json.Marshal(item)
		if err != nil {
			return nil, err
		}
		all = append(all, raw)
	}
	return all, nil
}
