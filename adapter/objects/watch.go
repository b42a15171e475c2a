package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"atoll.dev/adapter"
)

// eventOf returns the event in an object's annotation, or the zero Event.
func eventOf(annotations map[string]string) adapter.Event {
	var e adapter.Event
	if json.Unmarshal([]byte(annotations[annotationEvent]), &e) != nil {
		return adapter.Event{}
	}
	return e
}

// Watch implements adapter.Watcher. It follows all objects with the adapter's label, of each kind
// that the adapter uses. It reports the objects that existed when the first Watch began at the pace
// of Options.Pace, because they may have changed while no process watched them.
func (t *Objects) Watch(ctx context.Context, changed func(adapter.Event) (taken bool)) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	all.Go(func() { t.paced.Run(ctx, changed) })
	following := map[schema.GroupVersionKind]bool{}
	for {
		for _, f := range t.followers() {
			if !following[f.gvk] {
				following[f.gvk] = true
				all.Go(func() { f.run(ctx, changed) })
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.newKind:
		}
	}
}

// followers returns a follower for each kind that the adapter uses. A follower and its known
// objects outlive a Watch.
func (t *Objects) followers() []*follower {
	t.mu.Lock()
	defer t.mu.Unlock()
	for gvk := range t.watched {
		if t.follows[gvk] == nil {
			t.follows[gvk] = &follower{objects: t, gvk: gvk, known: map[place]known{}}
		}
	}
	return slices.Collect(maps.Values(t.follows))
}

// Recall implements adapter.Watcher.
func (t *Objects) Recall(match func(adapter.Event) bool) {
	for _, f := range t.followers() {
		t.paced.Add(f.events(match)...)
	}
}

// follower watches the objects of one kind. It keeps only the event and the version of each object;
// an informer would keep the whole objects.
type follower struct {
	objects *Objects
	gvk     schema.GroupVersionKind
	changed func(adapter.Event) bool // of the present Watch

	mu     sync.Mutex // guards known; only run's goroutine writes it
	known  map[place]known
	listed bool // a listing was complete
}

// known is the last observed state of an object.
type known struct {
	event   adapter.Event
	version string
}

// events returns the events of the known objects whose events match.
func (f *follower) events(match func(adapter.Event) bool) (events []adapter.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.known {
		if match(k.event) {
			events = append(events, k.event)
		}
	}
	return events
}

// The back-off between two attempts to list and watch.
const (
	minRetry = 100 * time.Millisecond
	maxRetry = 10 * time.Second
)

// run lists and watches until ctx ends. The known objects of an earlier run stay known.
func (f *follower) run(ctx context.Context, changed func(adapter.Event) bool) {
	f.changed = changed
	pause := minRetry
	for ctx.Err() == nil {
		begun := time.Now()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(begun) > maxRetry {
			pause = minRetry
		}
		if err != nil && !errors.Is(err, errNoSuchKind) {
			f.objects.log.Warn("watching objects was interrupted", "kind", f.gvk.String(), "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, maxRetry)
	}
}

// follow lists the objects, and then watches them until the watch fails. A later listing reports
// the objects that differ from the known ones. It is necessary after a failure: an API server that
// was restored from a backup continues from an earlier version, and its watch does not report the
// objects that were lost.
func (f *follower) follow(ctx context.Context) error {
	k, err := f.objects.kinds.find(ctx, f.gvk)
	if err != nil {
		return err
	}
	in := f.objects.dynamic.Resource(k.resource)
	selector := labels.Set{LabelAdapter: f.objects.label}.String()
	version, err := f.list(ctx, in, k, selector)
	if err != nil {
		if apierrors.IsNotFound(err) {
			f.objects.kinds.forget(f.gvk)
		}
		return err
	}
	for ctx.Err() == nil {
		w, err := in.Watch(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: version,
			AllowWatchBookmarks: true})
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return nil // list again
		}
		if err != nil {
			return err
		}
		begun := time.Now()
		version, err = f.handleEvents(w, k, version)
		w.Stop()
		if err != nil {
			return err
		}
		if time.Since(begun) < time.Second { // the server ends watches at once
			select {
			case <-ctx.Done():
			case <-time.After(minRetry):
			}
		}
	}
	return nil
}

// list lists the objects and reports those that differ from the known ones; the first listing
// reports all at a limited pace. It returns the version from which a watch continues.
func (f *follower) list(ctx context.Context, in dynamic.ResourceInterface, k kindOf, selector string) (version string,
	err error) {
	o := metav1.ListOptions{LabelSelector: selector, Limit: 500}
	now := map[place]known{}
	for {
		list, err := in.List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			at, is := f.stateOf(k, &list.Items[i])
			if is.event.ID == "" {
				is.event = f.known[at].event // another writer removed the annotation; that is drift, too
			}
			now[at] = is
		}
		version = list.GetResourceVersion()
		if o.Continue = list.GetContinue(); o.Continue == "" {
			break
		}
	}
	if !f.listed {
		f.listed = true
		var quiet []adapter.Event
		for at, is := range now {
			if !f.objects.isOwnWrite(at, is.version) {
				quiet = append(quiet, is.event)
			}
		}
		f.objects.paced.Add(quiet...)
	} else {
		for at, is := range now {
			if was, there := f.known[at]; !there || was.version != is.version {
				f.reportUnlessOwn(at, is)
			}
		}
		for at, was := range f.known {
			if _, there := now[at]; !there {
				f.objects.forget(at)
				f.report(was.event)
			}
		}
	}
	f.mu.Lock()
	f.known = now
	f.mu.Unlock()
	return version, nil
}

// stateOf returns the identity and the state of an object.
func (f *follower) stateOf(k kindOf, o *unstructured.Unstructured) (place, known) {
	return place{k.resource, o.GetNamespace(), o.GetName()}, known{eventOf(o.GetAnnotations()), o.GetResourceVersion()}
}

// handleEvents handles the events of one watch and returns the last version.
func (f *follower) handleEvents(w watch.Interface, k kindOf, version string) (string, error) {
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			err := apierrors.FromObject(e.Object)
			if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				return "", fmt.Errorf("the watch is too old: %w", err)
			}
			return version, err
		}
		o, ok := e.Object.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		if version = o.GetResourceVersion(); e.Type != watch.Bookmark {
			f.take(e.Type, k, o)
		}
	}
	return version, nil
}

// take compares an object with its last known state.
func (f *follower) take(what watch.EventType, k kindOf, o *unstructured.Unstructured) {
	at, is := f.stateOf(k, o)
	was, there := f.known[at]
	if is.event.ID == "" {
		is.event = was.event // another writer removed the annotation; that is drift, too
	}
	f.mu.Lock()
	if what == watch.Deleted {
		delete(f.known, at)
	} else {
		f.known[at] = is
	}
	f.mu.Unlock()
	switch {
	case what == watch.Deleted:
		f.objects.forget(at)
		f.report(is.event)
	case !there || was.version != is.version:
		f.reportUnlessOwn(at, is)
	}
}

// reportUnlessOwn reports a change unless Apply made it. During a write it waits for the write's
// version.
func (f *follower) reportUnlessOwn(at place, is known) {
	if !f.objects.isOwnWrite(at, is.version) && !f.objects.holdDuringWrite(at, is.version, func() { f.report(is.event) }) {
		f.report(is.event)
	}
}

// report calls changed for an object with an event.
func (f *follower) report(e adapter.Event) {
	if e.ID != "" {
		f.changed(e)
	}
}

// isOwnWrite reports whether Apply made this version of the object.
func (t *Objects) isOwnWrite(at place, version string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.applied[at].version == version
}

// holdDuringWrite keeps a change until the write in progress has ended. It returns false when no write is in
// progress.
func (t *Objects) holdDuringWrite(at place, version string, report func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.applied[at]
	if a.writing == 0 {
		return false
	}
	a.held = &held{version, report}
	t.applied[at] = a
	return true
}

// forget removes the record of a deleted object.
func (t *Objects) forget(at place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.applied[at].writing == 0 {
		delete(t.applied, at)
	}
}
