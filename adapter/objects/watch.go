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

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"atoll.dev/adapter"
)

func eventOf(annotations map[string]string) adapter.Event {
	var e adapter.Event
	if json.Unmarshal([]byte(annotations[annotationEvent]), &e) != nil {
		return adapter.Event{}
	}
	return e
}

// Watch follows all objects with the adapter's label, of each kind that is
// used. What was there when it began may have changed while nobody looked; of
// that it tells slowly, Options.Calm in a second.
func (t *Objects) Watch(ctx context.Context, changed func(adapter.Event)) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	calm := rate.NewLimiter(rate.Limit(t.calm), 1)
	following := map[schema.GroupVersionKind]bool{}
	for {
		t.mu.Lock()
		used := slices.Collect(maps.Keys(t.watched))
		t.mu.Unlock()
		for _, gvk := range used {
			if !following[gvk] {
				following[gvk] = true
				f := &follower{objects: t, gvk: gvk, changed: changed, calm: calm, known: map[place]known{}}
				all.Go(func() { f.run(ctx) })
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.fresh:
		}
	}
}

// follower watches one kind. It keeps of each object whose it is, no more: an
// informer would keep all of it.
type follower struct {
	objects *Objects
	gvk     schema.GroupVersionKind
	changed func(adapter.Event)
	calm    *rate.Limiter

	known  map[place]known
	listed bool // once
}

// known is what a follower keeps of an object.
type known struct {
	event   adapter.Event
	version string
}

const (
	minRetry = 100 * time.Millisecond
	maxRetry = 10 * time.Second
)

// run lists and watches until ctx ends.
func (f *follower) run(ctx context.Context) {
	var told sync.WaitGroup
	defer told.Wait()
	pause := minRetry
	for ctx.Err() == nil {
		begun := time.Now()
		err := f.follow(ctx, &told)
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

// follow lists the objects once and watches them from there until that ends.
func (f *follower) follow(ctx context.Context, told *sync.WaitGroup) error {
	k, err := f.objects.kinds.find(ctx, f.gvk)
	if err != nil {
		return err
	}
	in := f.objects.dynamic.Resource(k.resource)
	selector := labels.Set{LabelAdapter: f.objects.label}.String()
	version, err := f.list(ctx, in, k, selector, told)
	if err != nil {
		if apierrors.IsNotFound(err) {
			f.objects.kinds.forget(f.gvk)
		}
		return err
	}
	for ctx.Err() == nil {
		w, err := in.Watch(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: version, AllowWatchBookmarks: true})
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return nil // list again
		}
		if err != nil {
			return err
		}
		begun := time.Now()
		version, err = f.drain(w, k, version)
		w.Stop()
		if err != nil {
			return err
		}
		if time.Since(begun) < time.Second { // a server that ends watches at once
			select {
			case <-ctx.Done():
			case <-time.After(minRetry):
			}
		}
	}
	return nil
}

// list compares what is there with what was.
func (f *follower) list(ctx context.Context, in dynamic.ResourceInterface, k kindOf, selector string, told *sync.WaitGroup) (version string, err error) {
	o := metav1.ListOptions{LabelSelector: selector, Limit: 500}
	now := map[place]known{}
	for {
		list, err := in.List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			at, is := f.look(k, &list.Items[i])
			if is.event.ID == "" {
				is.event = f.known[at].event // the annotation was taken away: that is drift, too
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
			if !f.objects.own(at, is.version) {
				quiet = append(quiet, is.event)
			}
		}
		told.Go(func() {
			for _, e := range quiet {
				if f.calm.Wait(ctx) != nil {
					return
				}
				f.tell(e)
			}
		})
	} else {
		for at, is := range now {
			if was, there := f.known[at]; !there || was.version != is.version {
				f.saw(at, is)
			}
		}
		for at, was := range f.known {
			if _, there := now[at]; !there {
				f.tell(was.event)
			}
		}
	}
	f.known = now
	return version, nil
}

func (f *follower) look(k kindOf, o *unstructured.Unstructured) (place, known) {
	return place{k.resource, o.GetNamespace(), o.GetName()}, known{eventOf(o.GetAnnotations()), o.GetResourceVersion()}
}

// drain takes the events of one watch and returns how far it came.
func (f *follower) drain(w watch.Interface, k kindOf, version string) (string, error) {
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
		version = o.GetResourceVersion()
		if e.Type == watch.Bookmark {
			continue
		}
		at, is := f.look(k, o)
		was, there := f.known[at]
		if is.event.ID == "" {
			is.event = was.event // the annotation was taken away: that is drift, too
		}
		if e.Type == watch.Deleted {
			delete(f.known, at)
			f.objects.forget(at)
			f.tell(is.event)
			continue
		}
		f.known[at] = is
		if !there || was.version != is.version {
			f.saw(at, is)
		}
	}
	return version, nil
}

// saw tells of a change, unless it is our own.
func (f *follower) saw(at place, is known) {
	if !f.objects.own(at, is.version) && !f.objects.hold(at, is.version, func() { f.tell(is.event) }) {
		f.tell(is.event)
	}
}

func (f *follower) tell(e adapter.Event) {
	if e.ID != "" {
		f.changed(e)
	}
}

// own says whether Apply made this version of the object.
func (t *Objects) own(at place, version string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.applied[at].version == version
}

// hold keeps what a watch saw until the write that is under way has ended. It
// is false when there is none.
func (t *Objects) hold(at place, version string, tell func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.applied[at]
	if a.writing == 0 {
		return false
	}
	a.held = &held{version, tell}
	t.applied[at] = a
	return true
}

// forget drops what is known of an object that is gone.
func (t *Objects) forget(at place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.applied[at].writing == 0 {
		delete(t.applied, at)
	}
}
