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

// lacksAdditions reports whether the server is the original Maestro, which lacks Atoll's additions. It retries
// until the server answers. It reads the list of unknown works; a watch would not do, because the original
// answers a watch with a list, or fails.
func (w *Works) lacksAdditions(ctx context.Context) (bool, error) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		_, err := w.client.UnknownWorks(ctx, remote.ListOptions{Size: 1})
		switch status := remote.StatusOf(err); {
		case err == nil:
			w.mu.Lock()
			w.withoutAdditions = false // it may have been replaced
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

// followStatuses watches by the gRPC stream of the original Maestro. The stream does not replay what
// happens during an interruption, so after each connect all works are listed and compared.
func (w *Works) followStatuses(ctx context.Context, s *watching) error {
	list := func() error {
		s.mu.Lock()
		s.relist()
		s.mu.Unlock()
		for page := 1; ; page++ {
			doc, err := w.client.ListBundles(ctx, remote.ListOptions{Page: page, Size: pageSize, Search: remote.SearchEqual(
				"source", w.client.Source())})
			if err != nil {
				// The stream is connected, so the server runs; the next connect lists again.
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
				s.observe(b)
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
			s.observeDeletion(b.ID)
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
		s.observe(next)
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
