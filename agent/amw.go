package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"atoll.dev/api/work"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
)

func (k *kube) amwName(name amwName) string { return k.hubHash + "-" + string(name) }

func (k *kube) createAMW(ctx context.Context, e effCreateAMW) event {
	done := evAMWDone{id: e.id, name: e.name, op: amwCreate}
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": appliedWorkAPIVersion, "kind": appliedWorkKind,
		"metadata": map[string]any{"name": k.amwName(e.name), "finalizers": []any{amwFinalizer}},
		"spec":     map[string]any{"hubHash": k.hubHash, "agentID": k.agentID, "manifestWorkName": string(e.name)},
	}}
	obj.SetLabels(e.labels)
	if string(e.name) != string(e.id) {
		obj.SetAnnotations(map[string]string{workIDAnnotation: string(e.id)})
	}
	// A server-side apply, no create: the API server delays each create by two
	// seconds while the kind is younger than that (customresource_handler.go), and
	// the first work of a new management cluster would wait for it. An existing AMW
	// is returned as it is.
	made, err := k.dynamic.Resource(appliedWorks).Apply(ctx, k.amwName(e.name), obj, metav1.ApplyOptions{
		FieldManager: workv1.DefaultFieldManager, Force: true})
	if err != nil {
		done.err = classifyError(err)
		return done
	}
	done.amw, done.err = k.amwOf(made)
	return done
}

func (k *kube) deleteAMW(ctx context.Context, e effDeleteAMW) event {
	done := evAMWDone{id: e.id, name: e.name, op: amwDelete}
	background := metav1.DeletePropagationBackground
	amws := k.dynamic.Resource(appliedWorks)
	err := amws.Delete(ctx, k.amwName(e.name), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &e.uid},
		PropagationPolicy: &background})
	if err != nil && !apierrors.IsNotFound(err) {
		done.err = classifyError(err)
		return done
	}
	done.deletionRequested = err == nil // the watch shows the deletion
	return done
}

func (k *kube) finalizeAMW(ctx context.Context, e effFinalizeAMW) event {
	done := evAMWDone{id: e.id, name: e.name, op: amwFinalize}
	obj, err := k.setFinalizers(ctx, e.name, e.uid, e.finalizers)
	if apierrors.IsNotFound(err) {
		return done
	}
	if err != nil {
		done.err = classifyError(err)
		return done
	}
	if obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0 {
		return done
	}
	done.amw, done.err = k.amwOf(obj)
	return done
}

func (k *kube) setFinalizers(ctx context.Context, name amwName, uid types.UID, stay []string) (
	*unstructured.Unstructured, error) {
	var finalizers any // null removes all
	if len(stay) > 0 {
		finalizers = stay
	}
	return k.patchAMW(ctx, name, map[string]any{"metadata": map[string]any{"uid": uid, "finalizers": finalizers}})
}

// takeOverAMW may be repeated after an interruption: it skips objects whose owner
// was changed already, and deletes the former AMW last.
func (k *kube) takeOverAMW(ctx context.Context, e effTakeOverAMW) event {
	done := evAMWDone{id: e.id, name: e.name, op: amwTakeOver}
	fail := func(err error) event {
		done.err = classifyError(fmt.Errorf("taking over from AppliedManifestWork %s: %w", k.amwName(e.former), err))
		return done
	}
	for _, ref := range e.objects {
		if err := k.changeOwner(ctx, keyOf(ref), e); err != nil {
			return fail(err)
		}
	}
	obj, err := k.patchAMW(ctx, e.name, map[string]any{
		"metadata": map[string]any{"uid": e.uid}, "status": map[string]any{"appliedResources": e.applied},
	}, "status")
	if apierrors.IsNotFound(err) {
		return done // deleted meanwhile: the core creates it again
	}
	if err != nil {
		return fail(err)
	}
	if _, err := k.setFinalizers(ctx, e.former, e.formerUID, e.finalizers); err != nil && !apierrors.IsNotFound(err) {
		return fail(err)
	}
	background := metav1.DeletePropagationBackground
	err = k.dynamic.Resource(appliedWorks).Delete(ctx, k.amwName(e.former), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &e.formerUID}, PropagationPolicy: &background,
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fail(err)
	}
	done.formerDeleted = e.former
	done.amw, done.err = k.amwOf(obj)
	return done
}

// changeOwner replaces the former AMW by the present one among an object's owners.
// It changes nothing when the object does not exist or when the former AMW does
// not own it.
func (k *kube) changeOwner(ctx context.Context, key objectKey, e effTakeOverAMW) error {
	for range 3 {
		obj, err := k.metaResource(key).Get(ctx, key.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", key, err)
		}
		refs := slices.DeleteFunc(slices.Clone(obj.OwnerReferences), func(r metav1.OwnerReference) bool {
			return r.UID == e.formerUID
		})
		if len(refs) == len(obj.OwnerReferences) {
			return nil
		}
		if !e.orphaned[key.identity()] && !slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool {
			return r.UID == e.uid
		}) {
			refs = append(refs, ownerReference(k.amwName(e.name), e.uid))
		}
		_, err = k.metaResource(key).Patch(ctx, key.Name, types.MergePatchType, metadataPatch(ownersPatch(obj, refs)),
			metav1.PatchOptions{FieldManager: workv1.DefaultFieldManager})
		switch {
		case err == nil, apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err):
			return fmt.Errorf("changing the owner of %s: %w", key, err)
		}
	}
	return &opError{kind: errConflict, message: fmt.Sprintf("%s changes while its owner is changed", key)}
}

func (k *kube) recordAMW(ctx context.Context, e effRecordAMW) event {
	done := evAMWDone{id: e.id, name: e.name, op: amwRecord}
	status := map[string]any{"appliedResources": e.applied}
	if e.keep {
		status["evictionStartTime"] = nil
	}
	obj, err := k.patchAMW(ctx, e.name, map[string]any{"metadata": map[string]any{"uid": e.uid}, "status": status},
		"status")
	if apierrors.IsNotFound(err) {
		return done // deleted meanwhile: the core creates it again
	}
	if err != nil {
		done.err = classifyError(err)
		return done
	}
	done.amw, done.err = k.amwOf(obj)
	return done
}

func (k *kube) patchAMW(ctx context.Context, name amwName, patch map[string]any, sub ...string) (
	*unstructured.Unstructured, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	return k.dynamic.Resource(appliedWorks).Patch(ctx, k.amwName(name), types.MergePatchType, body,
		metav1.PatchOptions{FieldManager: workv1.DefaultFieldManager}, sub...)
}

// amwOf returns the part of an AppliedManifestWork that the core needs.
func (k *kube) amwOf(obj *unstructured.Unstructured) (*amwState, *opError) {
	a := &amwState{
		name: k.amwNameOf(obj), work: work.ID(obj.GetAnnotations()[workIDAnnotation]), uid: obj.GetUID(), rv: version(
			obj.GetResourceVersion()),
		deleting: obj.GetDeletionTimestamp() != nil, finalizers: obj.GetFinalizers(),
	}
	status, _, _ := unstructured.NestedMap(obj.Object, "status")
	var st workv1.AppliedManifestWorkStatus
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(status, &st); err != nil {
		return nil, &opError{kind: errRefused, message: err.Error()}
	}
	a.applied, a.evicting = st.AppliedResources, st.EvictionStartTime != nil
	spec, _, _ := unstructured.NestedStringMap(obj.Object, "spec")
	a.foreign = spec["agentID"] != k.agentID || spec["hubHash"] != k.hubHash || spec["manifestWorkName"] != string(
		a.name)
	return a, nil
}

func (k *kube) amwNameOf(obj metav1.Object) amwName {
	return amwName(strings.TrimPrefix(obj.GetName(), k.hubHash+"-"))
}

// isOurs reports whether an AppliedManifestWork belongs to this agent's hub.
func (k *kube) isOurs(name string) bool { return strings.HasPrefix(name, k.hubHash+"-") }

// version returns a resource version as a number, so that versions can be compared.
// A version that is no number, which Kubernetes no longer writes, counts as 0: any
// later observation replaces it.
func version(rv string) uint64 {
	n, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
