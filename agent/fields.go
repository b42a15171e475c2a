package agent

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// removedKeys are the labels and annotations that a manifest removes, by field of
// metadata. The manifest has them with a trailing "-".
type removedKeys map[string][]string

// cutRemovedKeys removes the keys with a trailing "-" from the manifest and returns them.
func cutRemovedKeys(obj *unstructured.Unstructured) removedKeys {
	var drop removedKeys
	md, _ := obj.Object["metadata"].(map[string]any)
	for _, field := range []string{"labels", "annotations"} {
		all, _ := md[field].(map[string]any)
		for key := range all {
			if name, ok := strings.CutSuffix(key, "-"); ok {
				if drop == nil {
					drop = removedKeys{}
				}
				drop[field] = append(drop[field], name)
				delete(all, key)
			}
		}
	}
	return drop
}

// keepOwnMetadata adds to the manifest the labels, annotations and finalizers that
// the manager applied before, so that a server-side apply does not remove them: the
// strategy Update only adds. The finalizers stay those of the existing object.
func keepOwnMetadata(obj *unstructured.Unstructured, live metav1.Object, manager string, drop removedKeys) {
	owned := ownedMetadata(live.GetManagedFields(), manager)
	add := func(field string, set map[string]string, there map[string]string) map[string]string {
		for name := range owned["f:"+field] {
			key := strings.TrimPrefix(name, "f:")
			value, ok := there[key]
			if _, inManifest := set[key]; !ok || inManifest || slices.Contains(drop[field], key) {
				continue
			}
			if set == nil {
				set = map[string]string{}
			}
			set[key] = value
		}
		return set
	}
	obj.SetLabels(add("labels", obj.GetLabels(), live.GetLabels()))
	obj.SetAnnotations(add("annotations", obj.GetAnnotations(), live.GetAnnotations()))
	var finalizers []string
	for _, f := range live.GetFinalizers() {
		quoted, err := json.Marshal(f)
		if err == nil && owned["f:finalizers"]["v:"+string(quoted)] != nil {
			finalizers = append(finalizers, f)
		}
	}
	obj.SetFinalizers(finalizers)
}

// ownedMetadata returns the metadata fields that a manager applied.
func ownedMetadata(fields []metav1.ManagedFieldsEntry, manager string) map[string]map[string]any {
	for _, f := range fields {
		if f.Operation != metav1.ManagedFieldsOperationApply || f.Subresource != "" || f.Manager != manager ||
			f.FieldsV1 == nil {
			continue
		}
		var set struct {
			Metadata map[string]any `json:"f:metadata"`
		}
		if err := json.Unmarshal(f.FieldsV1.Raw, &set); err != nil {
			continue
		}
		owned := map[string]map[string]any{}
		for name, v := range set.Metadata {
			owned[name], _ = v.(map[string]any)
		}
		return owned
	}
	return nil
}

// appliesMetadata reports whether a field manager of the agent set labels,
// annotations or finalizers, which must stay when the manifest drops them.
func appliesMetadata(fields []metav1.ManagedFieldsEntry) bool {
	for _, f := range fields {
		if f.Operation == metav1.ManagedFieldsOperationApply && f.Subresource == "" && f.FieldsV1 != nil &&
			strings.HasPrefix(f.Manager, workv1.DefaultFieldManager) &&
			(bytes.Contains(f.FieldsV1.Raw, []byte(`"f:labels"`)) || bytes.Contains(f.FieldsV1.Raw,
				[]byte(`"f:annotations"`)) || bytes.Contains(f.FieldsV1.Raw, []byte(`"f:finalizers"`))) {
			return true
		}
	}
	return false
}

// hasForeignContent reports whether other managers set content that none of the
// agent's managers sets. Metadata, status and subresources do not count.
func hasForeignContent(fields []metav1.ManagedFieldsEntry) bool {
	own, others := &fieldpath.Set{}, &fieldpath.Set{}
	for _, f := range fields {
		if f.Subresource != "" || f.FieldsV1 == nil {
			continue
		}
		var set fieldpath.Set
		if err := set.FromJSON(bytes.NewReader(f.FieldsV1.Raw)); err != nil {
			continue
		}
		if strings.HasPrefix(f.Manager, workv1.DefaultFieldManager) {
			own = own.Union(&set)
		} else {
			others = others.Union(&set)
		}
	}
	found := false
	others.Leaves().Difference(own.Leaves()).Iterate(func(p fieldpath.Path) {
		if name := p[0].FieldName; name != nil {
			switch *name {
			case "metadata", "status", "apiVersion", "kind":
				return
			}
		}
		found = found || !ownsBelow(own, p)
	})
	return found
}

// ownsBelow reports whether the set has something below the path: a map that another
// manager created is not foreign while the agent sets fields in it.
func ownsBelow(own *fieldpath.Set, p fieldpath.Path) bool {
	for _, element := range p {
		own = own.WithPrefix(element)
	}
	return !own.Empty()
}

// expectsForeignContent reports whether others write content into the object by
// design: OpenShift into service accounts, injectors of certificate authorities into
// objects with their annotation.
func expectsForeignContent(obj *unstructured.Unstructured) bool {
	return obj.GroupVersionKind().Group == "" && obj.GetKind() == "ServiceAccount" ||
		obj.GetLabels()["config.openshift.io/inject-trusted-cabundle"] == "true" ||
		obj.GetAnnotations()["service.beta.openshift.io/inject-cabundle"] == "true" ||
		obj.GetAnnotations()["cert-manager.io/inject-ca-from"] != ""
}

// mergeIntoLive returns the full update of the live object: the manifest's content,
// and the live metadata with the manifest's labels, annotations and owners added.
func mergeIntoLive(obj, live *unstructured.Unstructured) *unstructured.Unstructured {
	next := obj.DeepCopy()
	md, _ := live.DeepCopy().Object["metadata"].(map[string]any)
	next.Object["metadata"] = md
	add := func(there, more map[string]string) map[string]string {
		if there == nil {
			return more
		}
		maps.Copy(there, more)
		return there
	}
	next.SetLabels(add(live.GetLabels(), obj.GetLabels()))
	next.SetAnnotations(add(live.GetAnnotations(), obj.GetAnnotations()))
	refs := live.GetOwnerReferences()
	for _, o := range obj.GetOwnerReferences() {
		if !slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool { return r.UID == o.UID }) {
			refs = append(refs, o)
		}
	}
	next.SetOwnerReferences(refs)
	delete(next.Object, "status")
	if status, ok := live.Object["status"]; ok {
		next.Object["status"] = status
	}
	return next
}

// withoutStatus returns the object's content for a comparison.
func withoutStatus(obj *unstructured.Unstructured) map[string]any {
	content := maps.Clone(obj.Object)
	delete(content, "status")
	return content
}

func setAnnotation(obj *unstructured.Unstructured, key, value string) {
	all := obj.GetAnnotations()
	if all == nil {
		all = map[string]string{}
	}
	all[key] = value
	obj.SetAnnotations(all)
}
