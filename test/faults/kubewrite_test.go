package faults

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"atoll.dev/internal/jsonvalue"
)

// put stores an object and sends it to the watches. The caller holds the lock.
func (k *kubeAPI) put(key kubeKey, o map[string]any, kind string) {
	k.rv++
	meta(o)["resourceVersion"] = strconv.Itoa(k.rv)
	raw, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	if kind == "DELETED" {
		delete(k.objects, key)
	} else {
		k.objects[key] = o
	}
	k.log = append(k.log, kubeEvent{k.rv, kind, key, raw})
	close(k.changed)
	k.changed = make(chan struct{})
}

// apply is a server-side apply by one manager that owns all fields.
func (k *kubeAPI) apply(key kubeKey, want map[string]any, manager string) map[string]any {
	old := k.objects[key]
	o := clone(want)
	m := meta(o)
	m["name"] = key.name
	if key.namespace != "" {
		m["namespace"] = key.namespace
	}
	kind := "MODIFIED"
	if old == nil {
		kind = "ADDED"
		m["uid"], m["creationTimestamp"] = uuid.NewString(), time.Now().UTC().Format(time.RFC3339)
		k.made[key] = time.Now()
	} else {
		for _, f := range []string{"uid", "creationTimestamp", "deletionTimestamp", "resourceVersion"} {
			if v, ok := meta(old)[f]; ok {
				m[f] = v
			}
		}
		if st, ok := old["status"]; ok {
			o["status"] = st
		}
	}
	fields := map[string]any{}
	for _, part := range []string{"data", "spec"} {
		if v, ok := o[part].(map[string]any); ok {
			for name := range v {
				fields["f:"+part+"."+name] = map[string]any{}
			}
		}
	}
	m["managedFields"] = []any{map[string]any{"manager": manager, "operation": "Apply", "apiVersion": o["apiVersion"],
		"fieldsType": "FieldsV1",
		"fieldsV1":   fields, "time": time.Now().UTC().Format(time.RFC3339)}}
	if old != nil {
		a, b := clone(old), clone(o)
		delete(meta(a), "managedFields")
		delete(meta(b), "managedFields")
		if jsonvalue.Equal(a, b) {
			return old
		}
	}
	k.put(key, o, kind)
	return o
}

func (k *kubeAPI) patch(w http.ResponseWriter, key kubeKey, patch map[string]any, form objectForm) {
	old := k.objects[key]
	if old == nil {
		failure(w, 404, "NotFound", key.name)
		return
	}
	if m, ok := patch["metadata"].(map[string]any); ok {
		for _, f := range []string{"uid", "resourceVersion"} {
			if want, ok := m[f]; ok && want != meta(old)[f] {
				failure(w, 409, "Conflict", f+" is another")
				return
			}
		}
	}
	o := jsonvalue.Merge(clone(old), patch).(map[string]any)
	if jsonvalue.Equal(old, o) {
		answer(w, 200, inForm(old, form))
		return
	}
	if meta(o)["deletionTimestamp"] != nil && !hasFinalizers(o) {
		k.deleteWithDependents(key, o)
	} else {
		k.put(key, o, "MODIFIED")
	}
	answer(w, 200, inForm(o, form))
}

func hasFinalizers(o map[string]any) bool {
	f, _ := meta(o)["finalizers"].([]any)
	return len(f) > 0
}

func (k *kubeAPI) delete(w http.ResponseWriter, key kubeKey, options map[string]any) {
	old := k.objects[key]
	if old == nil {
		failure(w, 404, "NotFound", key.name)
		return
	}
	if pre, ok := options["preconditions"].(map[string]any); ok && pre["uid"] != nil && pre["uid"] != meta(old)["uid"] {
		failure(w, 409, "Conflict", "uid is another")
		return
	}
	o := clone(old)
	if hasFinalizers(o) {
		if meta(o)["deletionTimestamp"] == nil {
			meta(o)["deletionTimestamp"] = time.Now().UTC().Format(time.RFC3339)
			k.put(key, o, "MODIFIED")
		}
	} else {
		k.deleteWithDependents(key, o)
	}
	answer(w, 200, o)
}

// deleteWithDependents deletes an object, and all objects whose last owner it was, as Kubernetes' garbage collection
// does.
func (k *kubeAPI) deleteWithDependents(key kubeKey, o map[string]any) {
	k.put(key, o, "DELETED")
	if key.resource == configMaps {
		k.removed(key.name, k.made[key])
	}
	alive := map[any]bool{}
	for _, other := range k.objects {
		alive[meta(other)["uid"]] = true
	}
	for other, obj := range maps.Clone(k.objects) {
		refs, _ := meta(obj)["ownerReferences"].([]any)
		if len(refs) > 0 && !slices.ContainsFunc(refs, func(r any) bool { return alive[r.(map[string]any)["uid"]] }) {
			k.deleteWithDependents(other, clone(obj))
		}
	}
}
