package transporttest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	kubejson "k8s.io/apimachinery/pkg/util/json"

	"atoll.dev/adapter"
	"atoll.dev/api/work"
	"atoll.dev/internal/jsonvalue"
)

// Memory is a transport that keeps objects in memory, as a cluster would keep them. It is
// for tests of the engine and for benchmarks. Use NewMemory.
type Memory struct {
	// OnWrite, when set before the first use, is called with each created or updated
	// object, and may set its status, as controllers do.
	OnWrite func(adapter.Object)

	mu       sync.Mutex
	objects  map[objectKey]adapter.Object
	serial   int64
	watchers map[int]func(adapter.Event) bool
	nextID   int
}

// objectKey identifies an object on a management cluster.
type objectKey struct {
	target                         work.Consumer
	version, kind, namespace, name string
}

var (
	_ adapter.Transport = (*Memory)(nil)
	_ adapter.Watcher   = (*Memory)(nil)
)

// NewMemory returns a Memory without objects.
func NewMemory() *Memory {
	return &Memory{objects: map[objectKey]adapter.Object{}, watchers: map[int]func(adapter.Event) bool{}}
}

// Annotations of objects that transports apply.
const (
	annotationGeneration = "hyperfleet.io/generation"
	annotationEvent      = "atoll.dev/event"
)

// Discover implements adapter.Transport.
func (m *Memory) Discover(_ context.Context, s adapter.Search) ([]adapter.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []adapter.Object
	if s.Name != "" && s.Namespace != "*" {
		if o, ok := m.objects[objectKey{s.TargetCluster, s.APIVersion, s.Kind, s.Namespace, s.Name}]; ok &&
			hasLabels(o, s.Labels) {
			found = append(found, clone(o))
		}
		return found, nil
	}
	for p, o := range m.objects {
		if p.target == s.TargetCluster && p.version == s.APIVersion && p.kind == s.Kind &&
			(s.Namespace == "*" || p.namespace == s.Namespace) &&
			(s.Name == "" || p.name == s.Name) && hasLabels(o, s.Labels) {
			found = append(found, clone(o))
		}
	}
	slices.SortFunc(found, func(a, b adapter.Object) int {
		return cmp.Or(cmp.Compare(meta(a, "namespace"), meta(b, "namespace")), cmp.Compare(meta(a, "name"),
			meta(b, "name")))
	})
	return found, nil
}

// Apply implements adapter.Transport.
func (m *Memory) Apply(_ context.Context, a adapter.Application) (adapter.Applied, error) {
	want := clone(a.Object)
	event, err := json.Marshal(a.Event)
	if err != nil {
		return adapter.Applied{}, err
	}
	if text(want["kind"]) == "" || meta(want, "name") == "" {
		return adapter.Applied{}, fmt.Errorf("applying %s: an object needs a kind and a name", a.Resource)
	}
	annotations(want)[annotationEvent] = string(event)
	at := keyOf(a.TargetCluster, want)
	m.mu.Lock()
	defer m.mu.Unlock()
	have, exists := m.objects[at]
	if !exists && a.OnlyExisting {
		return adapter.Applied{Operation: adapter.Skipped, Reason: "it is not made again"}, nil
	}
	if !exists {
		m.put(at, want, nil)
		return adapter.Applied{Operation: adapter.Created, Reason: "there was none", Object: clone(want)}, nil
	}
	stored := generation(have)
	switch {
	case stored > a.Generation:
		return adapter.Applied{Operation: adapter.Skipped, Reason: fmt.Sprintf("generation %d is newer than %d", stored,
			a.Generation), Object: clone(have)}, nil
	case sameContent(want, have):
		return adapter.Applied{Operation: adapter.Skipped, Reason: "nothing to change", Object: clone(have)}, nil
	case a.Recreate && stored != a.Generation && !a.OnlyExisting:
		m.put(at, want, nil)
		return adapter.Applied{Operation: adapter.Recreated, Reason: "the generation changed", Object: clone(want)}, nil
	}
	m.put(at, want, have)
	return adapter.Applied{Operation: adapter.Updated, Reason: "the content differs", Object: clone(want)}, nil
}

// put stores an object with a new resource version. It takes the uid and the status from
// before, the object that o replaces; nil for a new object. The caller has the lock.
func (m *Memory) put(at objectKey, o, before adapter.Object) {
	m.serial++
	md := o["metadata"].(map[string]any)
	md["resourceVersion"] = strconv.FormatInt(m.serial, 10)
	md["uid"] = "uid-" + strconv.FormatInt(m.serial, 10)
	if before != nil {
		md["uid"] = meta(before, "uid")
		if status, ok := before["status"]; ok {
			o["status"] = status
		}
	}
	if m.OnWrite != nil {
		m.OnWrite(o)
	}
	m.objects[at] = clone(o)
}

// Delete implements adapter.Transport.
func (m *Memory) Delete(_ context.Context, d adapter.Deletion) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, keyOf(d.TargetCluster, d.Object))
	return nil
}

// keyOf returns the key of an object.
func keyOf(target work.Consumer, o adapter.Object) objectKey {
	return objectKey{target, text(o["apiVersion"]), text(o["kind"]), meta(o, "namespace"), meta(o, "name")}
}

// Change changes an object as another client would, and calls the watchers. When change
// returns false, Change deletes the object. It returns false when the object does not exist.
func (m *Memory) Change(target work.Consumer, o adapter.Object, change func(adapter.Object) bool) bool {
	m.mu.Lock()
	at := keyOf(target, o)
	have, exists := m.objects[at]
	if !exists {
		m.mu.Unlock()
		return false
	}
	var event adapter.Event
	err := json.Unmarshal([]byte(text(annotations(have)[annotationEvent])), &event)
	next := clone(have)
	if change(next) {
		m.serial++
		next["metadata"].(map[string]any)["resourceVersion"] = strconv.FormatInt(m.serial, 10)
		m.objects[at] = next
	} else {
		delete(m.objects, at)
	}
	watchers := slices.Collect(maps.Values(m.watchers))
	m.mu.Unlock()
	if err == nil {
		for _, f := range watchers {
			f(event)
		}
	}
	return true
}

// Len returns the number of objects.
func (m *Memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.objects)
}

// Watch implements adapter.Watcher.
func (m *Memory) Watch(ctx context.Context, changed func(adapter.Event) (taken bool)) error {
	m.mu.Lock()
	id := m.nextID
	m.nextID++
	m.watchers[id] = changed
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	delete(m.watchers, id)
	m.mu.Unlock()
	return ctx.Err()
}

// Recall implements adapter.Watcher.
func (m *Memory) Recall(match func(adapter.Event) bool) {
	m.mu.Lock()
	watchers := slices.Collect(maps.Values(m.watchers))
	var events []adapter.Event
	for _, o := range m.objects {
		var e adapter.Event
		if json.Unmarshal([]byte(text(annotations(clone(o))[annotationEvent])), &e) == nil && match(e) {
			events = append(events, e)
		}
	}
	m.mu.Unlock()
	for _, f := range watchers {
		for _, e := range events {
			f(e)
		}
	}
}

// sameContent reports whether two objects have the same content: all members but the status and the metadata, and of
// the metadata the labels and the annotations.
func sameContent(want, have adapter.Object) bool {
	for k, v := range want {
		if k != "metadata" && k != "status" && !jsonvalue.Equal(v, have[k]) {
			return false
		}
	}
	a, b := annotations(clone(want)), annotations(clone(have))
	delete(a, annotationEvent)
	delete(b, annotationEvent)
	return jsonvalue.Equal(a, b) && jsonvalue.Equal(labels(want), labels(have))
}

func clone(o adapter.Object) adapter.Object {
	data, err := json.Marshal(o)
	if err != nil {
		panic(err) // objects are JSON
	}
	var c adapter.Object
	if err := kubejson.Unmarshal(bytes.TrimSpace(data), &c); err != nil {
		panic(err)
	}
	return c
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func meta(o adapter.Object, name string) string {
	md, _ := o["metadata"].(map[string]any)
	return text(md[name])
}

// annotations returns an object's annotations. The caller may change them.
func annotations(o adapter.Object) map[string]any {
	md, ok := o["metadata"].(map[string]any)
	if !ok {
		md = map[string]any{}
		o["metadata"] = md
	}
	a, ok := md["annotations"].(map[string]any)
	if !ok {
		a = map[string]any{}
		md["annotations"] = a
	}
	return a
}

func labels(o adapter.Object) map[string]any {
	md, _ := o["metadata"].(map[string]any)
	l, _ := md["labels"].(map[string]any)
	return l
}

func hasLabels(o adapter.Object, want map[string]string) bool {
	l := labels(o)
	for k, v := range want {
		if text(l[k]) != v {
			return false
		}
	}
	return true
}

func generation(o adapter.Object) int64 {
	n, _ := strconv.ParseInt(strings.TrimSpace(text(annotations(o)[annotationGeneration])), 10, 64)
	return n
}
