package loop

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// watch keeps objects up to date until ctx ends.
func (l *Loop) watch(ctx context.Context) {
	var c dynamic.ResourceInterface = l.o.Client.Resource(l.o.Resource)
	if l.o.Namespace != "" {
		c = l.o.Client.Resource(l.o.Resource).Namespace(l.o.Namespace)
	}
	note := l.outages()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := l.list(ctx, c, o)
			note(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if l.o.Bound != nil {
				o.LabelSelector, o.FieldSelector = l.o.Bound.Selector, l.o.Bound.Fields
			}
			w, err := c.Watch(ctx, o)
			note(ctx, err)
			return w, err
		},
	}
	// After an outage of the API server the watch begins again within 2 s.
	backoff := &wait.Backoff{Duration: 50 * time.Millisecond, Cap: 2 * time.Second, Factor: 2, Steps: 8, Jitter: 0.5}
	var lister cache.ListerWatcher = lw
	if l.o.Bound != nil {
		lister = pagedLists{lw}
	}
	run := func(ctx context.Context) {
		r := cache.NewReflectorWithOptions(lister, nil, sink{l}, cache.ReflectorOptions{Name: "hosting",
			TypeDescription: l.o.Resource.String(), Backoff: backoff})
		r.RunWithContext(klog.NewContext(ctx, logr.Discard())) // outages are logged once, not at every try
	}
	if l.o.Bound == nil {
		run(ctx)
		return
	}
	l.watchUntilRoom(ctx, run)
}

func (l *Loop) list(ctx context.Context, c dynamic.ResourceInterface, o metav1.ListOptions) (
	*unstructured.UnstructuredList, error) {
	if l.o.Bound != nil {
		return l.listOnce(ctx, c)
	}
	return c.List(ctx, o)
}

// outages returns a function that logs when the watch begins to fail and when it
// works again.
func (l *Loop) outages() func(context.Context, error) {
	var mu sync.Mutex
	failing := false
	return func(ctx context.Context, err error) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil && !failing && ctx.Err() == nil:
			failing = true
			l.o.Log.Warn("a watch fails and is retried", "resource", l.o.Resource.String(), "error", err)
		case err == nil && failing:
			failing = false
			l.o.Log.Info("a watch works again", "resource", l.o.Resource.String())
		}
	}
}

// sink receives the reflector's objects.
type sink struct{ *Loop }

var _ cache.ReflectorStore = sink{}

func (s sink) Add(object any) error    { return s.put(object) }
func (s sink) Update(object any) error { return s.put(object) }
func (s sink) Resync() error           { return nil }

func (s sink) put(object any) error {
	key, u, err := keyOf(object)
	if err != nil {
		return err
	}
	trim(u, s.o.Bound)
	s.mu.Lock()
	if s.isFull(key) {
		s.recordDropped(key)
		s.mu.Unlock()
		return nil
	}
	s.objects[key] = u
	s.mu.Unlock()
	s.queue.Add(key)
	return nil
}

func (s sink) Delete(object any) error {
	m, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	key := Key{m.GetNamespace(), m.GetName()}
	s.mu.Lock()
	delete(s.objects, key)
	s.relistIfRoom()
	s.mu.Unlock()
	s.queue.Add(key)
	return nil
}

// Replace is called after a listing: objects that are not in it do not exist.
func (s sink) Replace(list []any, _ string) error {
	objects := make(map[Key]*unstructured.Unstructured, len(list))
	for _, object := range list {
		key, u, err := keyOf(object)
		if err != nil {
			return err
		}
		if s.o.Bound == nil { // else the list is trimmed
			trim(u, nil)
		}
		objects[key] = u
	}
	s.mu.Lock()
	before := s.objects
	s.objects = objects
	s.relistIfRoom()
	s.mu.Unlock()
	for key := range before {
		if objects[key] == nil {
			s.queue.Add(key)
		}
	}
	for key := range objects {
		s.queue.Add(key)
	}
	select {
	case <-s.synced:
	default:
		close(s.synced)
	}
	return nil
}

func keyOf(object any) (Key, *unstructured.Unstructured, error) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return Key{}, nil, errors.New("a watch returned a value that is no object")
	}
	return Key{u.GetNamespace(), u.GetName()}, u, nil
}
