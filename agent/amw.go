package agent

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
)

func (k *kube) amwName(id workID) string { return k.hubHash + "-" + string(id) }

func (k *kube) createAMW(ctx context.Context, e effCreateAMW) event {
	id := e.id
	done := evAMWDone{id: id, op: amwCreate}
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": appliedWorkAPIVersion, "kind": appliedWorkKind,
		"metadata": map[string]any{"name": k.amwName(id), "finalizers": []any{amwFinalizer}},
		"spec":     map[string]any{"hubHash": k.hubHash, "agentID": k.agentID, "manifestWorkName": string(id)},
	}}
	obj.SetLabels(e.labels)
	// Applied, not created: the API server makes every create wait two seconds
	// while the kind is younger than that (customresource_handler.go), and a new
	// management cluster's first work would be the one to wait. An AMW that is
	// there already is returned as it is.
	made, err := k.dynamic.Resource(appliedWorks).Apply(ctx, k.amwName(id), obj, metav1.ApplyOptions{FieldManager: workv1.DefaultFieldManager, Force: true})
	if err != nil {
		done.err = classify(err)
		return done
	}
	done.amw, done.err = k.amwOf(made)
	return done
}

func (k *kube) deleteAMW(ctx context.Context, e effDeleteAMW) event {
	done := evAMWDone{id: e.id, op: amwDelete}
	background := metav1.DeletePropagationBackground
	amws := k.dynamic.Resource(appliedWorks)
	err := amws.Delete(ctx, k.amwName(e.id), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &e.uid}, PropagationPolicy: &background})
	if err != nil && !apierrors.IsNotFound(err) {
		done.err = classify(err)
		return done
	}
	done.asked = err == nil // the watch shows it deleting, or gone
	return done
}

func (k *kube) finalizeAMW(ctx context.Context, e effFinalizeAMW) event {
	done := evAMWDone{id: e.id, op: amwFinalize}
	var finalizers any // null: none stays
	if len(e.finalizers) > 0 {
		finalizers = e.finalizers
	}
	obj, err := k.patchAMW(ctx, e.id, map[string]any{"metadata": map[string]any{"uid": e.uid, "finalizers": finalizers}})
	if apierrors.IsNotFound(err) {
		return done
	}
	if err != nil {
		done.err = classify(err)
		return done
	}
	if obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0 {
		return done
	}
	done.amw, done.err = k.amwOf(obj)
	return done
}

func (k *kube) recordAMW(ctx context.Context, e effRecordAMW) event {
	done := evAMWDone{id: e.id, op: amwRecord}
	status := map[string]any{"appliedResources": e.applied}
	if e.keep {
		status["evictionStartTime"] = nil
	}
	obj, err := k.patchAMW(ctx, e.id, map[string]any{"metadata": map[string]any{"uid": e.uid}, "status": status}, "status")
	if apierrors.IsNotFound(err) {
		return done // gone: it is made anew
	}
	if err != nil {
		done.err = classify(err)
		return done
	}
	done.amw, done.err = k.amwOf(obj)
	return done
}

func (k *kube) patchAMW(ctx context.Context, id workID, patch map[string]any, sub ...string) (*unstructured.Unstructured, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	return k.dynamic.Resource(appliedWorks).Patch(ctx, k.amwName(id), types.MergePatchType, body,
		metav1.PatchOptions{FieldManager: workv1.DefaultFieldManager}, sub...)
}

// amwOf keeps what the core needs of an AppliedManifestWork.
func (k *kube) amwOf(obj *unstructured.Unstructured) (*amwState, *opError) {
	a := &amwState{
		id: workID(strings.TrimPrefix(obj.GetName(), k.hubHash+"-")), uid: obj.GetUID(), rv: version(obj.GetResourceVersion()),
		deleting: obj.GetDeletionTimestamp() != nil, finalizers: obj.GetFinalizers(),
	}
	status, _, _ := unstructured.NestedMap(obj.Object, "status")
	var st workv1.AppliedManifestWorkStatus
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(status, &st); err != nil {
		return nil, &opError{kind: errRefused, message: err.Error()}
	}
	a.applied, a.evicting = st.AppliedResources, st.EvictionStartTime != nil
	spec, _, _ := unstructured.NestedStringMap(obj.Object, "spec")
	a.foreign = spec["agentID"] != k.agentID || spec["hubHash"] != k.hubHash || spec["manifestWorkName"] != string(a.id)
	return a, nil
}

// isOurs says whether an AppliedManifestWork belongs to this agent's hub.
func (k *kube) isOurs(name string) bool { return strings.HasPrefix(name, k.hubHash+"-") }

// version makes a resource version comparable. One that is no number, which
// Kubernetes no longer writes, counts as old and is always replaced.
func version(rv string) uint64 {
	n, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
