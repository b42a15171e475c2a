package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
)

// updateManager is the field manager of full updates, which the strategy Update
// makes where a server-side apply is not possible.
const updateManager = workv1.DefaultFieldManager + "-update"

// apply writes or reads one object, after a check of the executor's rights.
func (k *kube) apply(ctx context.Context, e effApply) event {
	done := evApplied{id: e.id, ordinal: e.ordinal, key: e.key, hash: e.hash, onlyRead: e.onlyRead}
	err := k.authorize(ctx, e)
	switch {
	case err != nil || e.onlyAuthorize:
	case e.onlyRead:
		if done.obs, err = k.read(ctx, e.key, e.gvk); err != nil {
			done.readErr = e.hideSecrets(err).Error()
		}
		done.err = classifyError(e.hideSecrets(err))
		return done
	default:
		done.obs, err = k.write(ctx, e)
	}
	done.err = classifyError(e.hideSecrets(err))
	if done.err != nil && done.err.kind != errTransport && done.err.kind != errNoKind {
		if done.obs, err = k.read(ctx, e.key, e.gvk); err != nil {
			done.readErr = e.hideSecrets(err).Error()
		}
	}
	return done
}

func (k *kube) write(ctx context.Context, e effApply) (*observed, error) {
	obj, err := prepare(e)
	if err != nil {
		return nil, &opError{kind: errRefused, message: err.Error()}
	}
	switch e.strategy.kind {
	case workv1.UpdateStrategyTypeCreateOnly:
		return k.create(ctx, e, obj)
	case workv1.UpdateStrategyTypeServerSideApply:
		return k.serverSideApply(ctx, e, obj)
	}
	return k.update(ctx, e, obj)
}

// prepare returns the manifest for a write: with its owners, without the fields that
// only an API server sets. The manifest's own owner references count only for the
// strategy ServerSideApply, as in OCM's agent.
func prepare(e effApply) (*unstructured.Unstructured, error) {
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON(e.manifest); err != nil {
		return nil, err
	}
	md, ok := obj.Object["metadata"].(map[string]any)
	if !ok {
		return nil, errors.New("the manifest's metadata is no object")
	}
	for _, f := range []string{"uid", "resourceVersion", "managedFields", "generation", "selfLink"} {
		delete(md, f)
	}
	delete(md, "creationTimestamp")
	dropNullTimes(obj.Object)
	if e.key.Namespace != "" {
		md["namespace"] = e.key.Namespace
	} else {
		delete(md, "namespace")
	}
	refs, _ := md["ownerReferences"].([]any)
	if e.strategy.kind != workv1.UpdateStrategyTypeServerSideApply {
		refs = nil
	}
	delete(md, "ownerReferences")
	for _, o := range e.owners {
		refs = append(refs, map[string]any{"apiVersion": o.APIVersion, "kind": o.Kind, "name": o.Name,
			"uid": string(o.UID)})
	}
	if len(refs) > 0 {
		md["ownerReferences"] = refs
	}
	return obj, nil
}

// addOwners adds the owners that the object does not have.
func addOwners(obj *unstructured.Unstructured, owners []metav1.OwnerReference) {
	refs := obj.GetOwnerReferences()
	for _, o := range owners {
		if !slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool { return r.UID == o.UID }) {
			refs = append(refs, o)
		}
	}
	if len(refs) > 0 {
		obj.SetOwnerReferences(refs)
	}
}

// dropNullTimes removes "creationTimestamp: null", which Go programs leave in
// templates: an apply with it would count as a change each time.
func dropNullTimes(v any) {
	switch v := v.(type) {
	case map[string]any:
		if md, ok := v["metadata"].(map[string]any); ok {
			if at, there := md["creationTimestamp"]; there && at == nil {
				delete(md, "creationTimestamp")
			}
		}
		for _, x := range v {
			dropNullTimes(x)
		}
	case []any:
		for _, x := range v {
			dropNullTimes(x)
		}
	}
}

// conflictPolicy says whether a server-side apply takes over the fields of other writers.
type conflictPolicy string

const (
	refuseConflicts conflictPolicy = "refuse" // the apply fails with 409
	forceConflicts  conflictPolicy = "force"  // the apply takes the fields over
)

// serverSide applies obj by server-side apply.
func (k *kube) serverSide(ctx context.Context, e effApply, obj *unstructured.Unstructured, policy conflictPolicy) (
	answeredObject, error) {
	body, err := json.Marshal(obj.Object)
	if err != nil {
		return answeredObject{}, err
	}
	return k.patch(ctx, e, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: e.strategy.manager,
		Force: new(policy == forceConflicts)})
}

// update replaces the object's content by the manifest's, also that of other writers,
// and adds to its labels, annotations and owners. OCM's agent reads the
// object and makes a full update. Where a forced server-side apply has the same
// result, update makes that, so that managedFields shows drift.
func (k *kube) update(ctx context.Context, e effApply, obj *unstructured.Unstructured) (*observed, error) {
	drop := cutRemovedKeys(obj)
	if e.readFirst || len(drop) > 0 || len(obj.GetFinalizers()) > 0 || k.sharesCluster() {
		live, err := k.metaResource(e.key).Get(ctx, e.key.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			keepOwnMetadata(obj, live, e.strategy.manager, drop)
			addOwners(obj, k.ownersOfOtherHubs(live))
		case !apierrors.IsNotFound(err):
			return nil, err
		}
	}
	got, err := k.serverSide(ctx, e, obj, forceConflicts)
	switch {
	case isSchemaError(err):
		// The schema does not know a field, or a list has an entry twice. An
		// update takes both.
		if got, err = k.replace(ctx, e, obj); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	case hasForeignContent(got.meta.GetManagedFields()) && !expectsForeignContent(obj):
		replaced, err := k.replace(ctx, e, obj)
		switch {
		case err == nil:
			got = replaced
		// the API server does not allow the removal of other writers' content
		case !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err):
			return nil, err
		}
	}
	return k.finishMetadata(ctx, e, got, drop)
}

// sharesCluster reports whether an agent with another hub works in the cluster.
//
// All agents of ours apply with the same field manager, as OCM's does. An apply
// removes each field that it leaves out, also the owner references of other
// agents. So an agent reads the object before an apply, and repeats these
// references. When it does not know of another agent yet, that agent detects the
// removal of its reference as drift, and writes it again.
func (k *kube) sharesCluster() bool { return k.otherHubs.Load() > 0 }

// ownersOfOtherHubs returns the owner references of the AppliedManifestWorks of
// other hubs that own the object.
func (k *kube) ownersOfOtherHubs(live metav1.Object) []metav1.OwnerReference {
	return slices.DeleteFunc(slices.Clone(live.GetOwnerReferences()), func(r metav1.OwnerReference) bool {
		return !isAppliedWork(r) || k.isOurs(r.Name)
	})
}

// isSchemaError reports whether a server-side apply failed because of the object's
// schema; a full update may succeed.
func isSchemaError(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "failed to create typed patch object") || strings.Contains(
		err.Error(), "failed to create typed live object"))
}

// replace creates the object, or updates it in full: it sets the manifest's content,
// and adds the manifest's metadata to that of the live object.
func (k *kube) replace(ctx context.Context, e effApply, obj *unstructured.Unstructured) (answeredObject, error) {
	live, err := k.resource(e.key).Get(ctx, e.key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		made, err := k.resource(e.key).Create(ctx, obj, metav1.CreateOptions{FieldManager: updateManager})
		if err != nil {
			return answeredObject{}, err
		}
		return k.answered(e, made), nil
	}
	if err != nil {
		return answeredObject{}, err
	}
	next := mergeIntoLive(obj, live)
	if equality.Semantic.DeepEqual(withoutStatus(next), withoutStatus(live)) {
		return k.answered(e, live), nil
	}
	made, err := k.resource(e.key).Update(ctx, next, metav1.UpdateOptions{FieldManager: updateManager})
	if err != nil {
		return answeredObject{}, err
	}
	return k.answered(e, made), nil
}

// create creates a missing object; of an existing one it changes the owners only.
func (k *kube) create(ctx context.Context, e effApply, obj *unstructured.Unstructured) (*observed, error) {
	cutRemovedKeys(obj)
	made, err := k.resource(e.key).Create(ctx, obj, metav1.CreateOptions{FieldManager: e.strategy.manager})
	if err == nil {
		return k.answered(e, made).obs, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	there, err := k.metaResource(e.key).Get(ctx, e.key.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	refs := slices.Clone(there.OwnerReferences)
	for _, o := range e.owners {
		if !slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool { return r.UID == o.UID }) {
			refs = append(refs, o)
		}
	}
	if len(refs) == len(there.OwnerReferences) && (e.owned || !slices.ContainsFunc(refs, e.owns)) {
		return k.read(ctx, e.key, e.gvk)
	}
	got, err := k.patch(ctx, e, types.MergePatchType, metadataPatch(ownersPatch(there, e.allowedOwners(refs))),
		metav1.PatchOptions{FieldManager: e.strategy.manager})
	return got.obs, err
}

// owns reports whether the reference names the AMW of the work that writes.
func (e effApply) owns(r metav1.OwnerReference) bool { return e.owner != "" && r.UID == e.owner }

// allowedOwners removes the work's own reference from the owners when the work
// orphans the object.
func (e effApply) allowedOwners(refs []metav1.OwnerReference) []metav1.OwnerReference {
	if e.owned {
		return refs
	}
	return slices.DeleteFunc(slices.Clone(refs), e.owns)
}

// serverSideApply applies the manifest without the fields that the work ignores.
func (k *kube) serverSideApply(ctx context.Context, e effApply, obj *unstructured.Unstructured) (*observed, error) {
	if len(e.strategy.ignore) > 0 {
		plan, err := planIgnore(e.manifest, e.strategy.ignore)
		if err != nil {
			return nil, &opError{kind: errRefused, reason: workv1.AppliedManifestSSAIgnoreFieldError,
				message: e.ignoreError(err)}
		}
		setAnnotation(obj, workv1.ManifestConfigSpecHashAnnotationKey, plan.hash)
		live, err := k.resource(e.key).Get(ctx, e.key.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err): // made in full
		case err != nil:
			return nil, err
		case live.GetAnnotations()[workv1.ManifestConfigSpecHashAnnotationKey] == plan.hash:
			return k.ensureOwners(ctx, e, k.answered(e, live))
		default:
			plan.keepIgnored(obj.Object, live.Object)
			addOwners(obj, e.owners)                          // also when the work ignores owner references
			obj.SetResourceVersion(live.GetResourceVersion()) // the update fails if another writer changed the object meanwhile
		}
	}
	if k.sharesCluster() {
		live, err := k.metaResource(e.key).Get(ctx, e.key.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			addOwners(obj, k.ownersOfOtherHubs(live))
		case !apierrors.IsNotFound(err):
			return nil, err
		}
	}
	got, err := k.serverSide(ctx, e, obj, e.strategy.conflicts)
	if err != nil {
		return nil, err
	}
	return k.finishMetadata(ctx, e, got, nil)
}

// ensureOwners corrects the owners of an object and changes nothing else.
func (k *kube) ensureOwners(ctx context.Context, e effApply, got answeredObject) (*observed, error) {
	refs := e.allowedOwners(got.meta.GetOwnerReferences())
	changed := len(refs) != len(got.meta.GetOwnerReferences())
	for _, o := range e.owners {
		if !slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool { return r.UID == o.UID }) {
			refs, changed = append(refs, o), true
		}
	}
	if !changed {
		return got.obs, nil
	}
	next, err := k.patch(ctx, e, types.MergePatchType, metadataPatch(ownersPatch(got.meta, refs)), metav1.PatchOptions{
		FieldManager: e.strategy.manager})
	return next.obs, err
}

// finishMetadata removes the metadata that a server-side apply cannot remove: labels
// and annotations that the manifest marks with "-", and the work's owner reference if
// the work orphans the object.
func (k *kube) finishMetadata(
	ctx context.Context,
	e effApply,
	got answeredObject,
	drop removedKeys,
) (*observed, error) {
	patch := map[string]any{}
	for field, there := range map[string]map[string]string{"labels": got.meta.GetLabels(),
		"annotations": got.meta.GetAnnotations()} {
		gone := map[string]any{}
		for _, key := range drop[field] {
			if _, ok := there[key]; ok {
				gone[key] = nil
			}
		}
		if len(gone) > 0 {
			patch[field] = gone
		}
	}
	if refs := e.allowedOwners(got.meta.GetOwnerReferences()); len(refs) != len(got.meta.GetOwnerReferences()) {
		maps.Copy(patch, ownersPatch(got.meta, refs))
	}
	if len(patch) == 0 {
		return got.obs, nil
	}
	next, err := k.patch(ctx, e, types.MergePatchType, metadataPatch(patch), metav1.PatchOptions{
		FieldManager: e.strategy.manager})
	if err != nil {
		return nil, fmt.Errorf("changing the metadata: %w", err)
	}
	return next.obs, nil
}
