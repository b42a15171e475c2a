package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"atoll.dev/internal/jsonvalue"
)

// fakeAPI is an API server with ConfigMaps and AppliedManifestWorks in memory. It has the verbs that the agent uses:
// discovery, apply and merge patches, get, delete, list and watch. It answers at once, so that the benchmark measures
// the agent alone.
//
// It runs in the process whose memory and processor time the benchmark measures. So it keeps the present objects only
// and encodes an event once for all watches. The API server of test/faults has preconditions, garbage collection and a
// log of all events besides, from which a watch continues after a fault; the cost of these would be in the figures.
type fakeAPI struct {
	requests atomic.Int64

	mu       sync.Mutex
	rv       int
	objects  map[string]map[string]map[string]any // by resource and namespace/name
	watchers map[string][]chan []byte
	stop     func()
	address  string
}

var fakeKinds = map[string]string{"configmaps": "ConfigMap", "appliedmanifestworks": "AppliedManifestWork",
	"customresourcedefinitions": "CustomResourceDefinition", "namespaces": "Namespace"}

func startFake() (*fakeAPI, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &fakeAPI{objects: map[string]map[string]map[string]any{}, watchers: map[string][]chan []byte{},
		address: "http://" + l.Addr().String()}
	for r := range fakeKinds {
		f.objects[r] = map[string]map[string]any{}
	}
	s := &http.Server{Handler: f, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	f.stop = func() { _ = s.Close() }
	return f, nil
}

func (f *fakeAPI) config() *rest.Config { return &rest.Config{Host: f.address} }

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.requests.Add(1)
	w.Header().Set("Content-Type", "application/json")
	resource := func(name, kind string) metav1.APIResource {
		return metav1.APIResource{Name: name, Kind: kind, Namespaced: name == "configmaps", Verbs: metav1.Verbs{"get",
			"list", "watch", "patch", "delete", "create"}}
	}
	group := func(name string) metav1.APIGroup {
		v := metav1.GroupVersionForDiscovery{GroupVersion: name + "/v1", Version: "v1"}
		return metav1.APIGroup{Name: name, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v}
	}
	switch path := strings.TrimPrefix(r.URL.Path, "/"); path {
	case "readyz":
		fmt.Fprint(w, "ok")
	case "api":
		writeJSON(w, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	case "apis":
		writeJSON(w, metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"},
			Groups: []metav1.APIGroup{group("work.open-cluster-management.io")}})
	case "api/v1":
		writeJSON(w, metav1.APIResourceList{GroupVersion: "v1", APIResources: []metav1.APIResource{
			resource("configmaps", "ConfigMap"), resource("namespaces", "Namespace")}})
	case "apis/work.open-cluster-management.io/v1":
		writeJSON(w, metav1.APIResourceList{GroupVersion: "work.open-cluster-management.io/v1",
			APIResources: []metav1.APIResource{resource("appliedmanifestworks", "AppliedManifestWork")}})
	default:
		f.serveObjects(w, r, strings.Split(path, "/"))
	}
}

func writeJSON(w io.Writer, v any) {
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func writeFailure(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	writeJSON(w, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure",
		Code: int32(code), Reason: reason})
}

// serveObjects serves /api/v1 and /apis/GROUP/v1, with or without a namespace.
func (f *fakeAPI) serveObjects(w http.ResponseWriter, r *http.Request, path []string) {
	path = path[2:]
	if len(path) > 0 && path[0] == "v1" {
		path = path[1:]
	}
	namespace := ""
	if len(path) > 2 && path[0] == "namespaces" {
		namespace, path = path[1], path[2:]
	}
	if len(path) == 0 || fakeKinds[path[0]] == "" {
		writeFailure(w, 404, metav1.StatusReasonNotFound)
		return
	}
	resource := path[0]
	form := wholeObject
	if strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata") {
		form = metadataOnly
	}
	if len(path) == 1 {
		if r.URL.Query().Get("watch") != "" {
			f.watch(w, r, resource, form)
			return
		}
		f.list(w, resource, form)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	key := namespace + "/" + path[1]
	stored := f.objects[resource][key]
	switch {
	case r.Method == http.MethodPatch && r.Header.Get("Content-Type") == "application/apply-patch+yaml":
		stored = f.apply(resource, namespace, path[1], stored, r)
	case stored == nil:
		writeFailure(w, 404, metav1.StatusReasonNotFound)
		return
	case r.Method == http.MethodPatch:
		stored = f.merge(resource, key, stored, r)
	case r.Method == http.MethodDelete:
		f.delete(resource, key, stored)
	}
	writeJSON(w, convert(stored, form))
}

// form is the form in which a request wants objects.
type form string

// The forms of objects.
const (
	wholeObject  form = ""
	metadataOnly form = "/metadata"
)

// convert returns an object in a form.
func convert(obj map[string]any, form form) map[string]any {
	if form == wholeObject {
		return obj
	}
	return map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
}

func (f *fakeAPI) list(w http.ResponseWriter, resource string, form form) {
	f.mu.Lock()
	defer f.mu.Unlock()
	items := []any{}
	for _, key := range slices.Sorted(maps.Keys(f.objects[resource])) {
		items = append(items, convert(f.objects[resource][key], form))
	}
	kind, version := fakeKinds[resource]+"List", "v1"
	if form == metadataOnly {
		kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	writeJSON(w, map[string]any{"kind": kind, "apiVersion": version, "metadata": map[string]any{
		"resourceVersion": strconv.Itoa(f.rv)}, "items": items})
}

func (f *fakeAPI) watch(w http.ResponseWriter, r *http.Request, resource string, form form) {
	changes := make(chan []byte, 100_000)
	name := resource + string(form)
	f.mu.Lock()
	f.watchers[name] = append(f.watchers[name], changes)
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for _, key := range slices.Sorted(maps.Keys(f.objects[resource])) {
			changes <- encodeEvent("ADDED", f.objects[resource][key], form)
		}
		kind := map[string]any{"kind": fakeKinds[resource], "apiVersion": "v1"}
		if resource == "appliedmanifestworks" {
			kind["apiVersion"] = "work.open-cluster-management.io/v1"
		}
		kind["metadata"] = map[string]any{"resourceVersion": strconv.Itoa(f.rv), "annotations": map[string]any{
			metav1.InitialEventsAnnotationKey: "true"}}
		changes <- encodeEvent("BOOKMARK", kind, form)
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.watchers[name] = slices.DeleteFunc(f.watchers[name], func(c chan []byte) bool { return c == changes })
	}()
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case line := <-changes:
			if _, err := w.Write(line); err != nil {
				return
			}
			if len(changes) == 0 {
				_ = flush.Flush()
			}
		}
	}
}

// encodeEvent returns a line of a watch.
func encodeEvent(kind string, obj map[string]any, form form) []byte {
	line, err := json.Marshal(map[string]any{"type": kind, "object": convert(obj, form)})
	if err != nil {
		panic(err) // decoded JSON always encodes
	}
	return append(line, '\n')
}

// publishChange gives an object the next version and sends it to the watches.
func (f *fakeAPI) publishChange(kind, resource string, obj map[string]any) {
	f.rv++
	obj["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(f.rv)
	for _, form := range []form{wholeObject, metadataOnly} {
		name := resource + string(form)
		if len(f.watchers[name]) == 0 {
			continue
		}
		line := encodeEvent(kind, obj, form)
		for _, c := range f.watchers[name] {
			c <- line
		}
	}
}

func decodeBody(r *http.Request) map[string]any {
	var v map[string]any
	if err := json.NewDecoder(r.Body).Decode(&v); err != nil {
		panic(http.ErrAbortHandler)
	}
	return v
}

func (f *fakeAPI) apply(resource, namespace, name string, stored map[string]any, r *http.Request) map[string]any {
	obj, kind := decodeBody(r), "ADDED"
	md := obj["metadata"].(map[string]any)
	manager, _ := url.QueryUnescape(r.URL.Query().Get("fieldManager"))
	now := time.Now().UTC().Format(time.RFC3339)
	md["uid"], md["creationTimestamp"] = uuid.NewString(), now
	if stored != nil {
		kind = "MODIFIED"
		old := stored["metadata"].(map[string]any)
		for _, field := range []string{"uid", "creationTimestamp", "deletionTimestamp"} {
			if v, ok := old[field]; ok {
				md[field] = v
			}
		}
		if status, ok := stored["status"]; ok {
			obj["status"] = status
		}
	}
	md["name"] = name
	if namespace != "" {
		md["namespace"] = namespace
	}
	delete(md, "managedFields")
	md["managedFields"] = []any{map[string]any{
		"manager": manager, "operation": "Apply", "apiVersion": "v1", "time": now, "fieldsType": "FieldsV1",
		"fieldsV1": map[string]any{"f:data": fieldsOf(obj["data"])},
	}}
	f.objects[resource][namespace+"/"+name] = obj
	f.publishChange(kind, resource, obj)
	return obj
}

func fieldsOf(v any) map[string]any {
	fields := map[string]any{}
	m, _ := v.(map[string]any)
	for k, x := range m {
		fields["f:"+k] = fieldsOf(x)
	}
	return fields
}

func (f *fakeAPI) merge(resource, key string, stored map[string]any, r *http.Request) map[string]any {
	next := jsonvalue.Merge(stored, decodeBody(r)).(map[string]any)
	md := next["metadata"].(map[string]any)
	finalizers, _ := md["finalizers"].([]any)
	if md["deletionTimestamp"] != nil && len(finalizers) == 0 {
		delete(f.objects[resource], key)
		f.publishChange("DELETED", resource, next)
		return next
	}
	f.objects[resource][key] = next
	f.publishChange("MODIFIED", resource, next)
	return next
}

func (f *fakeAPI) delete(resource, key string, stored map[string]any) {
	md := stored["metadata"].(map[string]any)
	if finalizers, _ := md["finalizers"].([]any); len(finalizers) > 0 {
		if md["deletionTimestamp"] == nil {
			next := jsonvalue.Merge(stored, map[string]any{"metadata": map[string]any{
				"deletionTimestamp": time.Now().UTC().Format(time.RFC3339)}}).(map[string]any)
			f.objects[resource][key] = next
			f.publishChange("MODIFIED", resource, next)
		}
		return
	}
	delete(f.objects[resource], key)
	f.publishChange("DELETED", resource, maps.Clone(stored))
}
