package apiserver

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
)

// historyStorage begins empty, at revision 1, and has the changes of a test.
type historyStorage struct {
	storage.Interface
	changes *watch.FakeWatcher
}

func (s *historyStorage) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

func (s *historyStorage) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// IsWatchListSemanticsUnSupported lets the cache list, and not read its first objects from a watch.
func (s *historyStorage) IsWatchListSemanticsUnSupported() bool { return true }

func (s *historyStorage) ReadinessCheck() error { return nil }

func (s *historyStorage) RequestWatchProgress(context.Context) error { return nil }

func (s *historyStorage) CompactRevision() int64 { return 0 }

func (s *historyStorage) GetCurrentResourceVersion(context.Context) (uint64, error) { return 1, nil }

func (s *historyStorage) GetList(_ context.Context, _ string, _ storage.ListOptions, list runtime.Object) error {
	list.(*corev1.ConfigMapList).ResourceVersion = "1"
	return nil
}

func (s *historyStorage) Watch(context.Context, string, storage.ListOptions) (watch.Interface, error) {
	return s.changes, nil
}

// configMapCacher returns a cacher of ConfigMaps, without their attributes.
func configMapCacher(t *testing.T, s storage.Interface) *cacher.Cacher {
	t.Helper()
	c, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage: s, Versioner: storage.APIObjectVersioner{},
		GroupResource:       schema.GroupResource{Resource: "configmaps"},
		EventsHistoryWindow: cacher.DefaultEventFreshDuration, ResourcePrefix: "/configmaps",
		KeyFunc: func(o runtime.Object) (string, error) { return "/configmaps/" + o.(*corev1.ConfigMap).Name, nil },
		GetAttrsFunc: func(runtime.Object) (labels.Set, fields.Set, error) {
			return nil, nil, nil
		},
		NewFunc:     func() runtime.Object { return &corev1.ConfigMap{} },
		NewListFunc: func() runtime.Object { return &corev1.ConfigMapList{} },
		Codec:       legacyscheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

// A cache with a bound of 200 events gets 1,000 within the 75 s for which upstream would keep all. A watch that begins
// before the last 200 is refused as expired; one that begins within them gets what it has missed.
func TestAWatchCacheKeepsABoundedHistory(t *testing.T) {
	const bound, last = 200, 1001 // revisions 2 to 1001 are changes
	s := &historyStorage{changes: watch.NewFake()}
	c := configMapCacher(t, s)
	if err := boundHistory(c, bound); err != nil {
		t.Fatal(err)
	}
	d := cacher.NewCacheDelegator(c, s)
	t.Cleanup(d.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // of a hang
	defer cancel()
	from := func(revision int) (watch.Interface, error) {
		return d.Watch(ctx, "/configmaps", storage.ListOptions{ResourceVersion: strconv.Itoa(revision), Recursive: true,
			Predicate: storage.Everything})
	}
	change := func(revision int) runtime.Object {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: strconv.Itoa(revision)}}
	}
	s.changes.Add(change(2)) // received after the list, so the cache is ready
	follower, err := from(1)
	if err != nil {
		t.Fatal(err)
	}
	defer follower.Stop()
	expect(t, follower, 2)
	for revision := 3; revision <= last; revision++ {
		s.changes.Modify(change(revision))
		expect(t, follower, revision) // so no change is on its way to the watches below
	}

	resumed, err := from(last - bound)
	if err != nil {
		t.Fatalf("a watch from the oldest of %d events: %v", bound, err)
	}
	defer resumed.Stop()
	for revision := last - bound + 1; revision <= last; revision++ {
		expect(t, resumed, revision)
	}

	for _, revision := range []int{last - bound - 1, 2} {
		w, err := from(revision)
		if err == nil {
			e := <-w.ResultChan()
			w.Stop()
			err = apierrors.FromObject(e.Object)
		}
		if !apierrors.IsResourceExpired(err) {
			t.Errorf("a watch from revision %d of %d: %v, want that it is expired", revision, last, err)
		}
	}
}

// expect receives an event and checks its revision.
func expect(t *testing.T, w watch.Interface, revision int) {
	t.Helper()
	e, ok := <-w.ResultChan()
	object := e.Object
	if shared, is := object.(runtime.CacheableObject); is { // an object whose encoding its watches share
		object = shared.GetObject()
	}
	if c, is := object.(*corev1.ConfigMap); !ok || !is || c.ResourceVersion != strconv.Itoa(revision) {
		t.Fatalf("the event is %s %v, want revision %d", e.Type, object, revision)
	}
}

// A version of Kubernetes whose watch cache has other fields is refused, and nothing is written to it.
func TestAnUnknownWatchCacheIsRefused(t *testing.T) {
	type known struct {
		sync.RWMutex
		upperBoundCapacity int
	}
	cache := &known{}
	if err := setUpperBound(reflect.ValueOf(&struct{ watchCache *known }{cache}), 5); err != nil ||
		cache.upperBoundCapacity != 5 {
		t.Errorf("the bound is %d, %v", cache.upperBoundCapacity, err)
	}
	type withoutLock struct{ upperBoundCapacity int }
	type withoutBound struct{ sync.RWMutex }
	type otherBound struct {
		sync.RWMutex
		upperBoundCapacity int32
	}
	for _, c := range []struct {
		cacher any
		lacks  string
	}{
		{&struct{ cache *known }{cache}, "no watchCache"},
		{&struct{ watchCache *known }{}, "no watchCache"},
		{&struct{ watchCache *withoutLock }{&withoutLock{}}, "no RWMutex"},
		{&struct{ watchCache *withoutBound }{&withoutBound{}}, "no upperBoundCapacity"},
		{&struct{ watchCache *otherBound }{&otherBound{}}, "no upperBoundCapacity"},
	} {
		if err := setUpperBound(reflect.ValueOf(c.cacher), 7); !strings.Contains(fmt.Sprint(err), c.lacks) {
			t.Errorf("%T: %v, want %q", c.cacher, err, c.lacks)
		}
	}
}
