package works

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/adapter"
	"atoll.dev/client"
	"atoll.dev/internal/rest"
)

// seen is what Watch knows of a work that is there.
type seen struct {
	event    adapter.Event
	version  int64
	status   uint64 // hash; of its deletion, too
	quiet    bool   // it was there when the watch began and nothing was told of it yet
	listings int    // the last listing that had it
}

// watching is one Watch. One goroutine owns it.
type watching struct {
	works   *Works
	changed func(adapter.Event)
	seed    maphash.Seed
	known   map[string]seen // by bundle
	listing int             // counts listings: up to the first complete one nothing is told, later of what differs
	listed  bool            // the present listing is complete
	calmed  bool            // a listing was complete: calm has what is to be told calmly
	calm    chan []adapter.Event
}

// bundleMeta is what Watch reads of a bundle.
type bundleMeta struct {
	ID        string            `json:"id"`
	Version   int64             `json:"version"`
	DeletedAt *time.Time        `json:"deleted_at"`
	Metadata  metav1.ObjectMeta `json:"metadata"`
	Status    json.RawMessage   `json:"status"`
}

// watchFields leaves out the manifests, which are most of a bundle.
const watchFields = "id,version,deleted_at,metadata,status"

// Watch follows the source's works. What was there when it began may have
// changed while nobody looked; of that it tells slowly, Options.Calm in a
// second, as the full comparison behind the feed.
func (w *Works) Watch(ctx context.Context, changed func(adapter.Event)) error {
	s := &watching{works: w, changed: changed, seed: maphash.MakeSeed(), known: map[string]seen{}, listing: 1, calm: make(chan []adapter.Event, 1)}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.tellCalmly(ctx)
	}()
	defer func() { cancel(); <-done }()
	foreign, err := w.isForeign(ctx)
	switch {
	case err != nil:
	case foreign:
		w.log.Info("this Maestro has no watch; its statuses are followed by gRPC")
		err = w.followStatuses(ctx, s)
	default:
		search := client.Equal("source", w.client.Source())
		err = w.client.FollowBundles(ctx, client.WatchOptions{Search: search, Fields: watchFields}, s.take)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("watching works: %w", err)
}

func (s *watching) take(e client.Event) error {
	switch e.Type {
	case client.Relist:
		s.listing++
		s.listed = false
		return nil
	case rest.Bookmark:
		if !s.listed && e.Cursor != "" {
			s.complete()
		}
		return nil
	}
	var b bundleMeta
	if err := json.Unmarshal(e.Object, &b); err != nil {
		return fmt.Errorf("reading a work: %w", err)
	}
	if e.Type == rest.Deleted {
		s.gone(b.ID)
	} else {
		s.see(b)
	}
	return nil
}

// see compares a work with what it was.
func (s *watching) see(b bundleMeta) {
	event, ours := eventOf(b.Metadata.Annotations)
	if !ours {
		return // of the same source, but not made by an adapter
	}
	now := seen{event: event, version: b.Version, status: s.statusOf(b), listings: s.listing}
	before, known := s.known[b.ID]
	first := !s.calmed
	now.quiet = before.quiet || first
	s.known[b.ID] = now
	if first {
		return
	}
	s.works.mu.Lock()
	made := s.works.made[b.ID]
	s.works.mu.Unlock()
	// A version that Apply made is nothing new to it, what came of it is.
	if known && before.status == now.status && (now.version == before.version || now.version == made) || !known && now.version == made && len(b.Status) == 0 {
		return
	}
	now.quiet = false
	s.known[b.ID] = now
	s.changed(event)
}

// statusOf is a hash of what a status says, however it was written.
func (s *watching) statusOf(b bundleMeta) uint64 {
	var said struct {
		Conditions     []metav1.Condition         `json:"conditions,omitempty"`
		ResourceStatus []workv1.ManifestCondition `json:"resourceStatus,omitempty"`
		Deleting       bool                       `json:"deleting,omitempty"`
	}
	data := []byte(b.Status)
	if json.Unmarshal(data, &said) == nil || len(data) == 0 {
		said.Deleting = b.DeletedAt != nil
		if canonical, err := json.Marshal(said); err == nil {
			data = canonical
		}
	}
	return maphash.Bytes(s.seed, data)
}

func (s *watching) gone(id string) {
	before, known := s.known[id]
	if !known {
		return
	}
	delete(s.known, id)
	s.works.expect(id, 0)
	s.changed(before.event)
}

// complete ends a listing: what it did not have is gone, and of what the first
// complete one had is told calmly.
func (s *watching) complete() {
	s.listed = true
	var quiet []adapter.Event
	for id, k := range s.known {
		switch {
		case k.listings != s.listing:
			s.gone(id)
		case k.quiet:
			k.quiet = false
			s.known[id] = k
			quiet = append(quiet, k.event)
		}
	}
	if !s.calmed {
		s.calmed = true
		s.calm <- quiet
	}
}

// tellCalmly tells of works at the pace of Options.Calm.
func (s *watching) tellCalmly(ctx context.Context) {
	limit := rate.NewLimiter(rate.Limit(s.works.calm), 1)
	select {
	case <-ctx.Done():
	case events := <-s.calm:
		for _, e := range events {
			if limit.Wait(ctx) != nil {
				return
			}
			s.changed(e)
		}
	}
}
