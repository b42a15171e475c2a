package works

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/adapter"
	"atoll.dev/client/remote"
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

// watching is what Watch knows. It stays from one Watch to the next, so that one
// that was interrupted tells of what changed in between and of nothing else.
type watching struct {
	works *Works
	seed  maphash.Seed
	calm  *adapter.PacedQueue

	mu      sync.Mutex // for Recall; otherwise the goroutine of Watch alone uses what follows
	changed func(adapter.Event) bool
	known   map[string]seen // by bundle
	listing int             // counts listings: up to the first complete one nothing is told, later of what differs
	listed  bool            // the present listing is complete
	calmed  bool            // a listing was complete
	cursor  string          // of what is known, once listed; a server that is not ours has none
}

func newWatching(w *Works, calm float64) *watching {
	return &watching{works: w, seed: maphash.MakeSeed(), calm: adapter.NewPacedQueue(calm), known: map[string]seen{}}
}

// relist begins a listing: of what is known, what it does not have is gone.
func (s *watching) relist() {
	s.listing++
	s.listed, s.cursor = false, ""
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

// Watch follows the source's works. What was there when the first Watch began may
// have changed while nobody looked; of that it tells slowly, Options.Calm in a
// second, as the full comparison behind the feed.
func (w *Works) Watch(ctx context.Context, changed func(adapter.Event) (taken bool)) error {
	s := w.watching
	s.mu.Lock()
	s.changed = changed
	if s.cursor == "" {
		s.relist()
	}
	cursor := s.cursor
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.calm.Run(ctx, changed)
	}()
	defer func() { cancel(); <-done }()
	foreign, err := w.isForeign(ctx)
	switch {
	case err != nil:
	case foreign:
		w.log.Info("this Maestro has no watch; its statuses are followed by gRPC")
		err = w.followStatuses(ctx, s)
	default:
		search := remote.Equal("source", w.client.Source())
		err = w.client.FollowBundles(ctx, remote.WatchOptions{Search: search, Fields: watchFields, Cursor: cursor},
			s.take)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("watching works: %w", err)
}

// Recall implements adapter.Watcher.
func (w *Works) Recall(match func(adapter.Event) bool) {
	s := w.watching
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []adapter.Event
	for _, k := range s.known {
		if match(k.event) {
			events = append(events, k.event)
		}
	}
	s.calm.Add(events...)
}

func (s *watching) take(e remote.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Type {
	case remote.Relist:
		s.relist()
		return nil
	case rest.Bookmark:
		if !s.listed && e.Cursor != "" {
			s.complete()
		}
	default:
		var b bundleMeta
		if err := json.Unmarshal(e.Object, &b); err != nil {
			return fmt.Errorf("reading a work: %w", err)
		}
		if e.Type == rest.Deleted {
			s.gone(b.ID)
		} else {
			s.see(b)
		}
	}
	if s.listed && e.Cursor != "" {
		s.cursor = e.Cursor
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
	if known && before.status == now.status && (now.version == before.version || now.version == made) || !known &&
		now.version == made && len(b.Status) == 0 {
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
	s.calmed = true
	s.calm.Add(quiet...)
}
