package faults

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// kubeAPI is a light API server: ConfigMaps and AppliedManifestWorks, with the features that the
// agent uses: server-side apply, merge patches with preconditions, finalizers, owner references
// with garbage collection, and watches from any version. (bench/agent has one with less, which costs less.)
type kubeAPI struct {
	server  *httptest.Server
	removed func(name string, made time.Time) // called after the deletion of a ConfigMap

	mu      sync.Mutex
	rv      int
	objects map[kubeKey]map[string]any
	log     []kubeEvent
	changed chan struct{} // closed at the next event
	made    map[kubeKey]time.Time
	stopped bool
}

type kubeKey struct{ resource, namespace, name string }

type kubeEvent struct {
	rv   int
	kind string
	key  kubeKey
	obj  []byte
}

const (
	configMaps   = "configmaps"
	appliedWorks = "appliedmanifestworks"
)

func newKube(t testing.TB, removed func(string, time.Time)) *kubeAPI {
	k := &kubeAPI{objects: map[kubeKey]map[string]any{}, changed: make(chan struct{}), made: map[kubeKey]time.Time{},
		removed: removed, rv: 1}
	k.server = httptest.NewServer(http.HandlerFunc(k.serve))
	t.Cleanup(func() {
		k.mu.Lock()
		k.stopped = true
		close(k.changed)
		k.changed = make(chan struct{})
		k.mu.Unlock()
		k.server.CloseClientConnections()
		k.server.Close()
	})
	return k
}

// values returns the values of the ConfigMaps by name.
func (k *kubeAPI) values() map[string]string {
	k.mu.Lock()
	defer k.mu.Unlock()
	found := map[string]string{}
	for key, o := range k.objects {
		if key.resource == configMaps {
			data, _ := o["data"].(map[string]any)
			found[key.name] = fmt.Sprint(data["value"])
		}
	}
	return found
}

func (k *kubeAPI) count(resource string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := 0
	for key := range k.objects {
		if key.resource == resource {
			n++
		}
	}
	return n
}

func (k *kubeAPI) serve(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/readyz":
		fmt.Fprint(w, "ok")
		return
	case "/api":
		answer(w, 200, map[string]any{"kind": "APIVersions", "versions": []string{"v1"}})
		return
	case "/apis":
		v := map[string]any{"groupVersion": "work.open-cluster-management.io/v1", "version": "v1"}
		answer(w, 200, map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": []any{
			map[string]any{"name": "work.open-cluster-management.io", "versions": []any{v}, "preferredVersion": v}}})
		return
	case "/api/v1":
		answer(w, 200, resources("v1", configMaps, "ConfigMap", namespaceScope))
		return
	case "/apis/work.open-cluster-management.io/v1":
		answer(w, 200, resources("work.open-cluster-management.io/v1", appliedWorks, "AppliedManifestWork", clusterScope))
		return
	}
	var key kubeKey
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case strings.HasPrefix(r.URL.Path, "/api/v1/"):
		parts = parts[2:]
	case strings.HasPrefix(r.URL.Path, "/apis/work.open-cluster-management.io/v1/"):
		parts = parts[3:]
	default:
		failure(w, 404, "NotFound", "no such path")
		return
	}
	if len(parts) >= 3 && parts[0] == "namespaces" {
		key.namespace, parts = parts[1], parts[2:]
	}
	key.resource = parts[0]
	if key.resource != configMaps && key.resource != appliedWorks {
		failure(w, 404, "NotFound", "no such resource")
		return
	}
	if len(parts) > 1 {
		key.name = parts[1]
	}
	form := formOf(r.Header.Get("Accept"))
	if r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1" {
		k.watch(w, r, key.resource, form)
		return
	}
	var body map[string]any
	if r.Method != http.MethodGet {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil && r.Method == http.MethodPatch {
			failure(w, 400, "BadRequest", err.Error())
			return
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case r.Method == http.MethodGet && key.name == "":
		k.list(w, key.resource, form)
	case r.Method == http.MethodGet:
		if o := k.objects[key]; o != nil {
			answer(w, 200, inForm(o, form))
			return
		}
		failure(w, 404, "NotFound", key.name)
	case r.Method == http.MethodPatch && strings.Contains(r.Header.Get("Content-Type"), "apply-patch"):
		answer(w, 200, inForm(k.apply(key, body, r.URL.Query().Get("fieldManager")), form))
	case r.Method == http.MethodPatch:
		k.patch(w, key, body, form)
	case r.Method == http.MethodDelete:
		k.delete(w, key, body)
	default:
		failure(w, 405, "MethodNotAllowed", r.Method)
	}
}

type resourceScope string

const (
	namespaceScope resourceScope = "Namespaced"
	clusterScope   resourceScope = "Cluster"
)

// resources returns the discovery document of one kind and its status.
func resources(gv, name, kind string, scope resourceScope) map[string]any {
	namespaced := scope == namespaceScope
	verbs := []string{"get", "list", "watch", "create", "update", "patch", "delete"}
	return map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": gv, "resources": []any{
		map[string]any{"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": verbs},
		map[string]any{"name": name + "/status", "singularName": "", "namespaced": namespaced, "kind": kind,
			"verbs": verbs},
	}}
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func failure(w http.ResponseWriter, code int, reason, message string) {
	answer(w, code, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
		"message": message, "code": code})
}

// objectForm says what of an object an answer has.
type objectForm string

const (
	wholeObject  objectForm = "object"
	metadataOnly objectForm = "metadata"
)

// formOf returns the form for an Accept header.
func formOf(accept string) objectForm {
	if strings.Contains(accept, "PartialObjectMetadata") {
		return metadataOnly
	}
	return wholeObject
}

// inForm returns an object, or its metadata alone.
func inForm(o map[string]any, form objectForm) map[string]any {
	if form == wholeObject {
		return o
	}
	return map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": o["metadata"]}
}

func meta(o map[string]any) map[string]any { return o["metadata"].(map[string]any) }

func clone(o map[string]any) map[string]any {
	var c map[string]any
	raw, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil {
		panic(err) // not reached: it was decoded from JSON
	}
	return c
}

func (k *kubeAPI) list(w http.ResponseWriter, resource string, form objectForm) {
	items := []any{}
	for _, key := range slices.SortedFunc(maps.Keys(k.objects), func(a, b kubeKey) int {
		return strings.Compare(a.name,
			b.name)
	}) {
		if key.resource == resource {
			items = append(items, inForm(k.objects[key], form))
		}
	}
	list := map[string]any{"kind": "List", "apiVersion": "v1", "metadata": map[string]any{
		"resourceVersion": strconv.Itoa(k.rv)}, "items": items}
	if resource == appliedWorks {
		list["kind"], list["apiVersion"] = "AppliedManifestWorkList", "work.open-cluster-management.io/v1"
	} else if form == wholeObject {
		list["kind"] = "ConfigMapList"
	}
	if form == metadataOnly {
		list["kind"], list["apiVersion"] = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	answer(w, 200, list)
}

func (k *kubeAPI) watch(w http.ResponseWriter, r *http.Request, resource string, form objectForm) {
	q := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	flusher := w.(http.Flusher)
	enc := json.NewEncoder(w)
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	k.mu.Lock()
	if q.Get("sendInitialEvents") == "true" {
		for key, o := range k.objects {
			if key.resource == resource {
				_ = enc.Encode(map[string]any{"type": "ADDED", "object": inForm(o, form)})
			}
		}
		mark := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{
			"resourceVersion": strconv.Itoa(k.rv), "annotations": map[string]any{"k8s.io/initial-events-end": "true"}}}
		if resource == appliedWorks {
			mark["apiVersion"], mark["kind"] = "work.open-cluster-management.io/v1", "AppliedManifestWork"
		}
		_ = enc.Encode(map[string]any{"type": "BOOKMARK", "object": inForm(mark, form)})
		from = k.rv
	}
	next, _ := slices.BinarySearchFunc(k.log, from+1, func(e kubeEvent, rv int) int { return e.rv - rv })
	k.mu.Unlock()
	flusher.Flush()
	for {
		k.mu.Lock()
		events, changed, stopped := k.log[next:], k.changed, k.stopped
		next = len(k.log)
		k.mu.Unlock()
		for _, e := range events {
			if e.key.resource != resource {
				continue
			}
			var o map[string]any
			if err := json.Unmarshal(e.obj, &o); err != nil {
				panic(err)
			}
			_ = enc.Encode(map[string]any{"type": e.kind, "object": inForm(o, form)})
		}
		flusher.Flush()
		if stopped {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}
