package agent

import (
	"context"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
)

// removalAction is the next step of the removal of one object.
type removalAction int

const (
	actionLeave   removalAction = iota // nothing to do: the object is gone, or the work does not own it
	actionRead                         // read the object from the API server and decide again
	actionRelease                      // remove the work's owner reference; the object stays
	actionAwait                        // the deletion of the object has begun: wait for its end
	actionDelete                       // request the deletion of the object
)

// instance has the properties of an object on which its removal depends.
type instance struct {
	exists      bool
	uid         types.UID
	rv          uint64
	deleting    bool
	ours        bool // the AppliedManifestWork of the work owns it
	othersOwnIt bool // another AppliedManifestWork owns it, too
	// isFresh: the API server has just answered with this state. Otherwise it is
	// from a watch, and the object may have changed since.
	isFresh bool
}

// watchedInstance returns the instance that a watch showed. The work's AppliedManifestWork
// must exist.
func (e effRemove) watchedInstance(obs *observed) instance {
	return instance{
		exists: obs.exists, uid: obs.uid, rv: obs.rv, deleting: obs.deleting, ours: slices.Contains(obs.owners, e.owner),
		othersOwnIt: slices.ContainsFunc(obs.owners, func(o types.UID) bool { return o != e.owner }),
	}
}

// next decides the next step of the removal.
//
// An instance that a watch showed may be out of date. That is enough to delete,
// since the API server checks the uid. It is not enough to leave the object in
// the cluster: another owner that the watch showed may have released the object
// since. Then the object would have no owner, and would stay for ever (I9).
// Nor is it enough to wait for the end of a deletion: without the right to watch
// the kind the agent would never observe the end.
func (e effRemove) next(in instance) removalAction {
	action := actionDelete
	switch {
	case !in.exists, e.uid != "" && in.uid != e.uid, !in.ours, e.owner == "" && e.uid == "":
		action = actionLeave
	case e.release, in.othersOwnIt:
		action = actionRelease
	case in.deleting:
		action = actionAwait
	}
	if action != actionDelete && !in.isFresh {
		return actionRead
	}
	return action
}

// removeTries bounds how often one call reads an object that changes while it is
// removed. The core tries again later.
const removeTries = 3

// remove deletes an object that the work owns alone, and removes the work's
// owner reference from an object that stays. The outcome is removalGone when
// nothing is left to do, and removalDeleting when the API server has still to
// delete the object.
func (k *kube) remove(ctx context.Context, e effRemove) event {
	done := evRemoved{id: e.id, key: e.key}
	in, action := instance{}, actionRead
	if e.obs != nil && e.owner != "" { // without the owner's uid, only a reference's name identifies the owner
		in = e.watchedInstance(e.obs)
		action = e.next(in)
	}
	var obj *metav1.PartialObjectMetadata
	for range removeTries {
		if action == actionRead {
			var err error
			obj, err = k.metaResource(e.key).Get(ctx, e.key.Name, metav1.GetOptions{})
			// The agent may not read the object and has never seen it: then the
			// API server refused its creation.
			if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) && e.uid == "" {
				return done
			}
			if err != nil {
				done.err = classifyError(e.hideSecrets(err))
				return done
			}
			in = k.readInstance(e, obj)
			action = e.next(in)
		}
		var err error
		switch action {
		case actionLeave:
			return done
		case actionAwait:
			done.outcome = removalDeleting
			return done
		case actionRelease:
			err = k.releaseObject(ctx, e, obj)
		default:
			if err = k.deleteObject(ctx, e.key, in); err == nil {
				done.outcome = removalDeleting
			}
		}
		if err == nil || apierrors.IsNotFound(err) {
			return done
		}
		if !apierrors.IsConflict(err) {
			done.err = classifyError(e.hideSecrets(err))
			return done
		}
		action = actionRead // the object changed
	}
	done.err = &opError{kind: errConflict, message: "the object changes while it is removed"}
	return done
}

// readInstance returns the instance that the API server answered with.
func (k *kube) readInstance(e effRemove, obj *metav1.PartialObjectMetadata) instance {
	in := instance{
		exists: true, uid: obj.UID, rv: version(obj.ResourceVersion), deleting: obj.DeletionTimestamp != nil, isFresh: true,
	}
	for _, r := range obj.OwnerReferences {
		switch {
		case k.isOwner(r, e):
			in.ours = true
		case isAppliedWork(r):
			in.othersOwnIt = true
		}
	}
	return in
}

// deleteObject requests the deletion of the instance. It deletes no later object of the same name.
func (k *kube) deleteObject(ctx context.Context, key objectKey, in instance) error {
	onlyIf := &metav1.Preconditions{UID: &in.uid}
	if k.sharesCluster() && in.rv != 0 { // the agent of another hub may come to own it at any moment
		onlyIf.ResourceVersion = new(strconv.FormatUint(in.rv, 10))
	}
	background := metav1.DeletePropagationBackground // as OCM does, regardless of the work's option
	o := metav1.DeleteOptions{Preconditions: onlyIf, PropagationPolicy: &background}
	return k.metaResource(key).Delete(ctx, key.Name, o)
}

// releaseObject removes the work's owner reference from the object. It fails
// with a conflict when the object changed since it was read.
func (k *kube) releaseObject(ctx context.Context, e effRemove, obj *metav1.PartialObjectMetadata) error {
	refs := slices.DeleteFunc(slices.Clone(obj.OwnerReferences), func(r metav1.OwnerReference) bool {
		return k.isOwner(r, e)
	})
	patch := metadataPatch(ownersPatch(obj, refs))
	o := metav1.PatchOptions{FieldManager: workv1.DefaultFieldManager}
	_, err := k.metaResource(e.key).Patch(ctx, e.key.Name, types.MergePatchType, patch, o)
	return err
}

// isOwner reports whether the reference names the AppliedManifestWork of the work
// whose object is removed.
func (k *kube) isOwner(r metav1.OwnerReference, e effRemove) bool {
	return isAppliedWork(r) && (r.UID == e.owner || e.owner == "" && r.Name == k.amwName(e.amw))
}
