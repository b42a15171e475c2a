package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// watcher runs one reflector per kind.
type watcher struct {
	kube *kube
	log  *slog.Logger
	post func(event)

	mu      sync.Mutex
	running map[schema.GroupVersionResource]*kindWatch
	kinds   bool          // changes of CustomResourceDefinitions are posted
	changed chan struct{} // closed and replaced at each change of a CustomResourceDefinition
	wg      sync.WaitGroup
}

type kindWatch struct {
	scope  watchScope
	cancel context.CancelFunc
}

func newWatcher(k *kube, log *slog.Logger, post func(event)) *watcher {
	return &watcher{kube: k, log: log, post: post, running: map[schema.GroupVersionResource]*kindWatch{},
		changed: make(chan struct{})}
}

// watchBackoff is the pause between tries of a watch that fails.
func watchBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 100 * time.Millisecond, Cap: 2 * time.Second, Factor: 2, Steps: 8, Jitter: 0.5}
}

// watchKind starts the watch of a kind, or replaces a watch of metadata by one of
// whole objects.
func (w *watcher) watchKind(ctx context.Context, gvr schema.GroupVersionResource, scope watchScope) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if k := w.running[gvr]; k != nil {
		if k.scope >= scope {
			return
		}
		k.cancel()
	}
	ctx, cancel := context.WithCancel(ctx)
	w.running[gvr] = &kindWatch{scope, cancel}
	var lw *cache.ListWatch
	if scope == watchObjects {
		c := w.kube.dynamic.Resource(gvr)
		lw = &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return c.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return c.Watch(ctx, o)
			},
		}
	} else {
		c := w.kube.metadata.Resource(gvr)
		lw = &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return c.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return c.Watch(ctx, o)
			},
		}
	}
	lw.ListWithContextFunc = pauseWhileMissing(lw.ListWithContextFunc, w.nextKindChange)
	w.reflect(ctx, gvr, lw, &kindSink{w: w, gvr: gvr})
}

// nextKindChange returns a channel that is closed at the next change of a CustomResourceDefinition.
func (w *watcher) nextKindChange() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// The pause between two lists of a kind that the API server does not have begins with missingPauseMin, doubles, and
// stays at missingPauseMax. A change of a CustomResourceDefinition ends it, since the kind may be back.
const (
	missingPauseMin = 2 * time.Second
	missingPauseMax = time.Minute
)

// pauseWhileMissing returns list with a pause before each try that follows a 404. One reflector calls it, so no two
// calls overlap.
func pauseWhileMissing(list cache.ListWithContextFunc, nextChange func() <-chan struct{}) cache.ListWithContextFunc {
	var pause time.Duration
	var changed <-chan struct{}
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		if pause > 0 {
			timer := time.NewTimer(pause)
			defer timer.Stop()
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-changed:
				pause = 0
			case <-timer.C:
			}
		}
		changed = nextChange() // before the list: a change during the list ends the next pause
		got, err := list(ctx, o)
		if apierrors.IsNotFound(err) {
			pause = min(max(2*pause, missingPauseMin), missingPauseMax)
		} else {
			pause = 0
		}
		return got, err
	}
}

// watchKinds starts the watch of CustomResourceDefinitions.
func (w *watcher) watchKinds(ctx context.Context) {
	w.mu.Lock()
	already := w.kinds
	w.kinds = true
	w.mu.Unlock()
	if !already {
		w.watchKind(ctx, customResources, watchMetadata)
	}
}

// watchAMWs starts watching the AppliedManifestWorks of our hub.
func (w *watcher) watchAMWs(ctx context.Context) {
	c := w.kube.dynamic.Resource(appliedWorks)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return c.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, o)
		},
	}
	w.reflect(ctx, appliedWorks, lw, &amwSink{w: w, known: map[amwName]*amwState{}, others: map[string]bool{}})
}

func (w *watcher) reflect(ctx context.Context, gvr schema.GroupVersionResource, lw *cache.ListWatch,
	sink cache.ReflectorStore) {
	w.logChanges(gvr, lw)
	r := cache.NewReflectorWithOptions(lw, nil, sink, cache.ReflectorOptions{Name: "agent",
		TypeDescription: gvr.String(), Backoff: watchBackoff()})
	ctx = klog.NewContext(ctx, logr.Discard()) // logChanges logs an outage once, not at every try
	w.wg.Go(func() { r.RunWithContext(ctx) })
}

// logChanges logs when a watch begins to fail and when it works again.
func (w *watcher) logChanges(gvr schema.GroupVersionResource, lw *cache.ListWatch) {
	var mu sync.Mutex
	failing := false
	note := func(ctx context.Context, err error) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil && !failing && ctx.Err() == nil:
			failing = true
			w.log.Warn("a watch fails and is retried", "resource", gvr.String(), "error", err)
		case err == nil && failing:
			failing = false
			w.log.Info("a watch works again", "resource", gvr.String())
		}
	}
	list, watchFn := lw.ListWithContextFunc, lw.WatchFuncWithContext
	lw.ListWithContextFunc = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		obj, err := list(ctx, o)
		note(ctx, err)
		return obj, err
	}
	lw.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		i, err := watchFn(ctx, o)
		note(ctx, err)
		return i, err
	}
}

// kindSink receives the objects of one kind from its reflector.
type kindSink struct {
	w   *watcher
	gvr schema.GroupVersionResource
}

var _ cache.TransformingStore = (*kindSink)(nil)

func (s *kindSink) Add(obj any) error    { s.show(obj); return nil }
func (s *kindSink) Update(obj any) error { s.show(obj); return nil }
func (s *kindSink) Resync() error        { return nil }

func (s *kindSink) Delete(obj any) error {
	s.showDeleted(obj)
	return nil
}

// Replace handles a complete listing: a registered object that it lacks does not
// exist.
func (s *kindSink) Replace(list []any, rv string) error {
	there := make(map[nameKey]bool, len(list))
	for _, obj := range list {
		if m, err := meta.Accessor(obj); err == nil {
			there[nameKey{m.GetNamespace(), m.GetName()}] = true
			s.show(obj)
		}
	}
	for _, n := range s.w.kube.registry.absent(s.gvr, there) {
		s.w.post(evObject{objectKey{s.gvr, n.namespace, n.name}, &observed{rv: version(rv)}})
	}
	return nil
}

// seenObject is the part of an object that stays in memory during a listing; obs is
// nil when the object was not registered.
type seenObject struct {
	metav1.ObjectMeta
	obs *observed
}

// Transformer reduces each object of a listing at once, so that the whole objects
// are never in memory together.
func (s *kindSink) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		m, err := meta.Accessor(obj)
		if err != nil {
			return obj, nil // a tombstone
		}
		seen := &seenObject{}
		seen.Namespace, seen.Name, seen.ResourceVersion, seen.UID = m.GetNamespace(), m.GetName(),
			m.GetResourceVersion(), m.GetUID()
		seen.obs = s.observe(objectKey{s.gvr, seen.Namespace, seen.Name}, obj, m)
		return seen, nil
	}
}

// observe returns the observation of an object; nil when the object is not
// registered, or when its rules need a whole object.
func (s *kindSink) observe(key objectKey, obj any, m metav1.Object) *observed {
	if seen, ok := obj.(*seenObject); ok {
		return seen.obs // nil if it was registered later: then the core reads it
	}
	rules, wanted := s.w.kube.registry.rules(s.gvr, nameKey{key.Namespace, key.Name})
	if !wanted {
		return nil
	}
	var content map[string]any
	var gvk schema.GroupVersionKind
	if u, ok := obj.(*unstructured.Unstructured); ok {
		content, gvk = u.Object, u.GroupVersionKind()
	}
	if content == nil && len(rules) > 0 {
		return nil // the watch of whole objects follows
	}
	return s.w.kube.registry.observe(key, m, content, gvk)
}

// readChange returns key and metadata of an object that has changed; ok is false for a value that is no object. A
// changed CustomResourceDefinition may give the agent other kinds, so readChange has the watcher read them again.
func (s *kindSink) readChange(obj any) (key objectKey, m metav1.Object, ok bool) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return key, nil, false
	}
	if s.gvr == customResources {
		s.w.kindChanged()
	}
	return objectKey{s.gvr, m.GetNamespace(), m.GetName()}, m, true
}

// show posts an object that exists to the core, if it is registered.
func (s *kindSink) show(obj any) {
	key, m, ok := s.readChange(obj)
	if !ok {
		return
	}
	if obs := s.observe(key, obj, m); obs != nil {
		s.w.post(evObject{key, obs})
	}
}

// showDeleted posts to the core that an object does not exist any more, if it is registered.
func (s *kindSink) showDeleted(obj any) {
	key, m, ok := s.readChange(obj)
	if !ok {
		return
	}
	if _, wanted := s.w.kube.registry.rules(s.gvr, nameKey{key.Namespace, key.Name}); wanted {
		s.w.post(evObject{key, &observed{rv: version(m.GetResourceVersion()), uid: m.GetUID()}})
	}
}

// kindsSettle is how long discovery may be out of date after a change of a
// CustomResourceDefinition.
const kindsSettle = 300 * time.Millisecond

func (w *watcher) kindChanged() {
	w.mu.Lock()
	watching := w.kinds
	close(w.changed)
	w.changed = make(chan struct{})
	w.mu.Unlock()
	if !watching {
		return
	}
	w.kube.kindsChanged()
	w.post(evKindsChanged{})
	time.AfterFunc(kindsSettle, func() { w.post(evKindsChanged{}) })
}

// amwSink receives the AppliedManifestWorks. It belongs to the reflector's
// goroutine.
type amwSink struct {
	w      *watcher
	known  map[amwName]*amwState
	others map[string]bool // of other hubs
}

func (s *amwSink) Add(obj any) error    { s.show(obj); return nil }
func (s *amwSink) Update(obj any) error { s.show(obj); return nil }
func (s *amwSink) Resync() error        { return nil }

func (s *amwSink) Delete(obj any) error {
	u, ok := obj.(*unstructured.Unstructured)
	switch {
	case !ok:
	case s.w.kube.isOurs(u.GetName()):
		name := s.w.kube.amwNameOf(u)
		delete(s.known, name)
		s.w.post(evAMWDeleted{name, u.GetUID()})
	default:
		delete(s.others, u.GetName())
		s.w.kube.otherHubs.Store(int64(len(s.others)))
	}
	return nil
}

func (s *amwSink) Replace(list []any, _ string) error {
	there := map[amwName]bool{}
	clear(s.others)
	for _, obj := range list {
		if name := s.show(obj); name != "" {
			there[name] = true
		}
	}
	s.w.kube.otherHubs.Store(int64(len(s.others)))
	for name, a := range s.known {
		if !there[name] {
			delete(s.known, name)
			s.w.post(evAMWDeleted{name, a.uid})
		}
	}
	s.w.post(evAMWsSynced{})
	return nil
}

// show posts an AppliedManifestWork of our hub to the core, and returns its
// name. Of one of another hub it notes the name, and returns "".
func (s *amwSink) show(obj any) amwName {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return ""
	}
	if !s.w.kube.isOurs(u.GetName()) {
		s.others[u.GetName()] = true
		s.w.kube.otherHubs.Store(int64(len(s.others)))
		return ""
	}
	a, bad := s.w.kube.amwOf(u)
	if bad != nil {
		s.w.log.Error("an AppliedManifestWork cannot be read", "name", u.GetName(), "error", bad.message)
		return ""
	}
	s.known[a.name] = a
	s.w.post(evAMW{a})
	return a.name
}
