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
	"atoll.dev/api/work"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

// observedWork is the last observed state of a work.
type observedWork struct {
	event    adapter.Event
	version  int64
	status   uint64 // hash of the status and of the deletion
	quiet    bool   // it existed when the watch began and has not been reported yet
	listings int    // the last listing that contained it
}

// watching is the state of Watch. It outlives a Watch, so that the next one reports the changes in
// between and nothing else.
type watching struct {
	works *Works
	seed  maphash.Seed
	paced *adapter.PacedQueue

	mu      sync.Mutex // guards the following against Recall; only Watch writes them
	changed func(adapter.Event) bool
	known   map[work.ID]observedWork // by bundle
	// counts listings; the first complete one reports nothing, later ones the differences
	listing    int
	listed     bool   // the present listing is complete
	listedOnce bool   // a listing was complete
	cursor     string // position of known once a listing is complete; the original server has none
}

func newWatching(w *Works, pace float64) *watching {
	return &watching{
		works: w,
		seed:  maphash.MakeSeed(),
		paced: adapter.NewPacedQueue(pace),
		known: map[work.ID]observedWork{},
	}
}

// relist begins a listing. Known works that it does not contain are deleted.
func (s *watching) relist() {
	s.listing++
	s.listed, s.cursor = false, ""
}

// bundleMeta has the members of a bundle that Watch reads.
type bundleMeta struct {
	ID        work.ID           `json:"id"`
	Version   int64             `json:"version"`
	DeletedAt *time.Time        `json:"deleted_at"`
	Metadata  metav1.ObjectMeta `json:"metadata"`
	Status    json.RawMessage   `json:"status"`
}

// watchFields leaves out the manifests, which are most of a bundle.
const watchFields = "id,version,deleted_at,metadata,status"

// Watch implements adapter.Watcher. It reports works that existed when the first Watch began at the pace
// of Options.Pace, as the full comparison behind the feed.
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
		s.paced.Run(ctx, changed)
	}()
	defer func() { cancel(); <-done }()
	foreign, err := w.lacksAdditions(ctx)
	switch {
	case err != nil:
	case foreign:
		w.log.Info("this Maestro has no watch; its statuses are followed by gRPC")
		err = w.followStatuses(ctx, s)
	default:
		search := remote.SearchEqual("source", w.client.Source())
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
	s.paced.Add(events...)
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
			s.observeDeletion(b.ID)
		} else {
			s.observe(b)
		}
	}
	if s.listed && e.Cursor != "" {
		s.cursor = e.Cursor
	}
	return nil
}

// observe compares a work with its last observed state and reports a change.
func (s *watching) observe(b bundleMeta) {
	event, ours := eventOf(b.Metadata.Annotations)
	if !ours {
		return // of the same source, but not made by an adapter
	}
	now := observedWork{event: event, version: b.Version, status: s.statusOf(b), listings: s.listing}
	before, known := s.known[b.ID]
	first := !s.listedOnce
	now.quiet = before.quiet || first
	s.known[b.ID] = now
	if first {
		return
	}
	s.works.mu.Lock()
	made := s.works.appliedVersions[b.ID]
	s.works.mu.Unlock()
	// The version that Apply made is no news, its status is.
	if known && before.status == now.status && (now.version == before.version || now.version == made) || !known &&
		now.version == made && len(b.Status) == 0 {
		return
	}
	now.quiet = false
	s.known[b.ID] = now
	s.changed(event)
}

// statusOf returns a hash of a status that does not depend on the order of its members.
func (s *watching) statusOf(b bundleMeta) uint64 {
	var status struct {
		Conditions     []metav1.Condition         `json:"conditions,omitempty"`
		ResourceStatus []workv1.ManifestCondition `json:"resourceStatus,omitempty"`
		Deleting       bool                       `json:"deleting,omitempty"`
	}
	data := []byte(b.Status)
	if json.Unmarshal(data, &status) == nil || len(data) == 0 {
		status.Deleting = b.DeletedAt != nil
		if canonical, err := json.Marshal(status); err == nil {
			data = canonical
		}
	}
	return maphash.Bytes(s.seed, data)
}

// observeDeletion reports the deletion of a known work.
func (s *watching) observeDeletion(id work.ID) {
	before, known := s.known[id]
	if !known {
		return
	}
	delete(s.known, id)
	s.works.recordAppliedVersion(id, 0)
	s.changed(before.event)
}

// complete ends a listing. Works that it did not contain are deleted; those of the first complete listing
// are reported at a limited pace.
func (s *watching) complete() {
	s.listed = true
	var quiet []adapter.Event
	for id, k := range s.known {
		switch {
		case k.listings != s.listing:
			s.observeDeletion(id)
		case k.quiet:
			k.quiet = false
			s.known[id] = k
			quiet = append(quiet, k.event)
		}
	}
	s.listedOnce = true
	s.paced.Add(quiet...)
}
