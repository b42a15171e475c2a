package loop_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"atoll.dev/hosting/loop"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testsite"
)

func TestMain(m *testing.M) { os.Exit(planetest.Main(m)) }

func configMaps() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
}

// bed is a namespace of the shared plane and the calls of one loop.
type bed struct {
	t         *testing.T
	client    dynamic.ResourceInterface
	namespace string
	calls     chan call
	loop      *loop.Loop
	stop      func()
}

type call struct {
	key    loop.Key
	object *unstructured.Unstructured
}

func start(t *testing.T, namespace string, options func(*loop.Options), answer func(call) (time.Duration, error)) *bed {
	t.Helper()
	namespace += "-" + strings.ToLower(rand.Text()[:6]) // tests may run more than once on one plane
	config, err := planetest.Shared(t).Config.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": namespace}}}
	if _, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(t.Context(),
		ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, client: client.Resource(configMaps()).Namespace(namespace), namespace: namespace,
		calls: make(chan call, 100)}
	o := loop.Options{Client: client, Resource: configMaps(), Namespace: namespace, Reconcile: func(_ context.Context,
		key loop.Key, object *unstructured.Unstructured) (time.Duration, error) {
		c := call{key, object}
		if key.Name == "kube-root-ca.crt" { // every namespace has it
			return 0, nil
		}
		b.calls <- c
		return answer(c)
	}}
	if options != nil {
		options(&o)
	}
	b.loop = loop.New(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := b.loop.Run(ctx); err != nil {
			t.Errorf("the loop ended: %v", err)
		}
	}()
	b.stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(b.stop)
	select {
	case <-b.loop.Synced():
	case <-time.After(testsite.HangLimit):
		t.Fatal("no listing")
	}
	return b
}

func (b *bed) create(name string) {
	b.t.Helper()
	cm := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": name}}}
	if _, err := b.client.Create(b.t.Context(), cm, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) next() call {
	b.t.Helper()
	select {
	case c := <-b.calls:
		return c
	case <-time.After(testsite.HangLimit):
		b.t.Fatal("no call")
		return call{}
	}
}

func TestALoopReconcilesCreatedChangedAndDeletedObjects(t *testing.T) {
	b := start(t, "loop-seen", nil, func(call) (time.Duration, error) { return 0, nil })
	b.create("one")
	first := b.next()
	if first.key != (loop.Key{Namespace: b.namespace, Name: "one"}) || first.object == nil ||
		first.object.GetManagedFields() != nil {
		t.Fatalf("first call: %+v", first)
	}
	first.object.SetName("spoilt") // it is the callee's own
	if got := b.loop.Get(first.key); got == nil || got.GetName() != "one" {
		t.Fatalf("the loop's own copy is %v", got)
	}
	b.loop.Trigger(first.key)
	if again := b.next(); again.object == nil || again.object.GetName() != "one" {
		t.Fatalf("triggered call: %+v", again)
	}
	if err := b.client.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if gone := b.next(); gone.object != nil {
		t.Fatalf("call after the end: %+v", gone)
	}
	b.loop.Trigger(loop.Key{Namespace: b.namespace, Name: "never"})
	if never := b.next(); never.object != nil || never.key.Name != "never" {
		t.Fatalf("call for what never was: %+v", never)
	}
	b.stop()
	b.loop.Trigger(first.key) // does nothing, and does not hang
}

func TestALoopRetriesWithBackOff(t *testing.T) {
	var mu sync.Mutex
	var times []time.Time
	b := start(t, "loop-again", nil, func(call) (time.Duration, error) {
		mu.Lock()
		defer mu.Unlock()
		if times = append(times, time.Now()); len(times) <= 4 {
			return 0, errors.New("not yet")
		}
		return 10 * time.Millisecond, nil
	})
	b.create("stubborn")
	for range 7 { // 4 failures, then again and again because it asks for it
		b.next()
	}
	mu.Lock()
	defer mu.Unlock()
	if gap := times[4].Sub(times[3]); gap < 150*time.Millisecond {
		t.Errorf("the wait after the fourth failure was %s, want 160 ms at least", gap)
	}
}

func TestALoopNeverReconcilesAnObjectTwiceAtOnce(t *testing.T) {
	const objects = 20
	var running [objects]atomic.Int32
	var calls atomic.Int32
	enough := make(chan struct{})
	done := sync.OnceFunc(func() { close(enough) })
	b := start(t, "loop-once", func(o *loop.Options) { o.Workers = 8 }, func(call) (time.Duration, error) {
		return 0,
			nil
	})
	b.stop()
	config, _ := planetest.Shared(t).Config.RESTConfig()
	client, _ := dynamic.NewForConfig(config)
	l := loop.New(loop.Options{Client: client, Resource: configMaps(), Namespace: b.namespace, Workers: 8,
		Reconcile: func(_ context.Context, key loop.Key, _ *unstructured.Unstructured) (time.Duration, error) {
			var i int
			if _, err := fmt.Sscanf(key.Name, "n%d", &i); err != nil {
				return 0, nil
			}
			if running[i].Add(1) != 1 {
				t.Errorf("%s is reconciled twice at once", key)
			}
			if calls.Add(1) >= 2000 {
				done()
			}
			running[i].Add(-1)
			return time.Nanosecond, nil
		}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- l.Run(ctx) }()
	go func() {
		for ctx.Err() == nil {
			for i := range objects {
				l.Trigger(loop.Key{Namespace: b.namespace, Name: fmt.Sprintf("n%d", i)})
			}
		}
	}()
	select {
	case <-enough:
	case <-time.After(testsite.HangLimit):
		t.Error("too few calls")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestALoopSurvivesItsAPIServer(t *testing.T) {
	p := planetest.Start(t)
	config, err := p.Config.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan string, 100)
	l := loop.New(loop.Options{Client: client, Resource: configMaps(), Namespace: "default",
		Reconcile: func(_ context.Context, key loop.Key, object *unstructured.Unstructured) (time.Duration, error) {
			if object != nil {
				seen <- key.Name
			}
			return 0, nil
		}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- l.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	<-l.Synced()
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	planetest.Restart(t, p)
	cm := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "after"}}}
	if _, err := client.Resource(configMaps()).Namespace("default").Create(ctx, cm,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case name := <-seen:
			if name == "after" {
				return
			}
		case <-time.After(testsite.HangLimit):
			t.Fatal("what was made after the restart was never seen")
		}
	}
}

// An API server without the kind does not show that objects are deleted.
func TestOnlyANotFoundMeansDeleted(t *testing.T) {
	config, err := planetest.Shared(t).Config.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for resource, want := range map[schema.GroupVersionResource]bool{
		configMaps(): true,
		{Group: "hypershift.openshift.io", Version: "v1beta1", Resource: "nodepools"}: false, // never installed here
		{Version: "v1", Resource: "nosuchthings"}:                                     false,
	} {
		_, err := client.Resource(resource).Namespace("default").Get(t.Context(), "missing", metav1.GetOptions{})
		if err == nil || loop.IsGone(err) != want {
			t.Errorf("%s: %v; gone is %v, want %v", resource.Resource, err, loop.IsGone(err), want)
		}
	}
}
