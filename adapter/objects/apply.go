package objects

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"atoll.dev/adapter"
)

// Apply creates or updates the object by server-side apply with force: the adapter owns the fields
// that the task names, and others own the rest. Apply does not change an object of a higher
// generation. The object was unchanged when its resourceVersion is the same after the write.
//
// Each write has the resourceVersion that Apply read as a precondition, or that there is no object,
// so that of two replicas the one with the lower generation never overwrites the higher.
// Controllers write statuses at any time, so Apply repeats a write that failed for this reason.
func (t *Objects) Apply(ctx context.Context, a adapter.Application) (adapter.Applied, error) {
	o := unstructured.Unstructured{Object: a.Object}
	var done adapter.Applied
	var err error
	for range attempts {
		if done, err = t.apply(ctx, a); !apierrors.IsConflict(err) {
			break
		}
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		err = fmt.Errorf("its namespace: %w", adapter.ErrTerminating)
	}
	if err != nil {
		return done, fmt.Errorf("applying %s %s: %w", o.GetKind(), o.GetName(), hideSecrets(a.Object, err))
	}
	return done, nil
}

// attempts is the maximum number of writes of an object that others change at the same time.
const attempts = 10

// noVersion is a resourceVersion that no object has. With it the API server creates an object, and
// answers Conflict if the object exists.
const noVersion = "1"

// apply is one attempt of Apply.
func (t *Objects) apply(ctx context.Context, a adapter.Application) (adapter.Applied, error) {
	want, hash, err := t.desiredObject(a)
	if err != nil {
		return adapter.Applied{}, err
	}
	gvk := want.GroupVersionKind()
	k, err := t.kinds.find(ctx, gvk)
	if err != nil {
		return adapter.Applied{}, err
	}
	t.watchKind(gvk)
	at := place{k.resource, want.GetNamespace(), want.GetName()}
	if !k.namespaced {
		at.namespace = ""
		want.SetNamespace("")
	} else if at.namespace == "" {
		at.namespace = metav1.NamespaceDefault // as kubectl and the original's client do
		want.SetNamespace(at.namespace)
	}
	have, err := t.clientFor(at.GroupVersionResource, at.namespace).Get(ctx, at.name, metav1.GetOptions{})
	switch {
	case a.OnlyExisting && (apierrors.IsNotFound(err) || err == nil && have.GetDeletionTimestamp() != nil):
		return adapter.Applied{Operation: adapter.Skipped,
			Reason: "its resource is being deleted: it is not made again"}, nil
	case apierrors.IsNotFound(err):
		return t.write(ctx, at, want, nil, hash, adapter.Created, "there was none")
	case err != nil:
		return adapter.Applied{}, err
	case have.GetDeletionTimestamp() != nil:
		return adapter.Applied{}, fmt.Errorf("the object of this name: %w", adapter.ErrTerminating)
	}
	was := generationOf(have)
	switch {
	case was > a.Generation:
		return adapter.Applied{Operation: adapter.Skipped, Reason: fmt.Sprintf(
			"generation %d is applied, which is newer than %d", was, a.Generation), Object: have.Object}, nil
	case t.isUnchanged(at, hash, have.GetResourceVersion()):
		return adapter.Applied{Operation: adapter.Skipped, Reason: fmt.Sprintf("generation %d is applied and unchanged",
			was), Object: have.Object}, nil
	case a.Recreate && was != a.Generation && !a.OnlyExisting:
		return t.recreate(ctx, at, want, have, hash, fmt.Sprintf("generation %d became %d", was, a.Generation))
	}
	reason := fmt.Sprintf("generation %d became %d", was, a.Generation)
	if was == a.Generation {
		reason = fmt.Sprintf("it was not as generation %d wants it", was)
	}
	done, err := t.write(ctx, at, want, have, hash, adapter.Updated, reason)
	if a.Recreate && !a.OnlyExisting && apierrors.IsInvalid(err) { // a field that others set cannot be set back
		return t.recreate(ctx, at, want, have, hash, "it cannot be changed to the wanted content")
	}
	return done, err
}

// desiredObject returns the task's object with the transport's label and annotation, and a hash of its content.
func (t *Objects) desiredObject(a adapter.Application) (*unstructured.Unstructured, string, error) {
	want := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(a.Object)}
	if want.GetName() == "" {
		return nil, "", errors.New("an object needs a name")
	}
	for _, field := range []string{"managedFields", "resourceVersion", "uid", "creationTimestamp"} {
		unstructured.RemoveNestedField(want.Object, "metadata", field)
	}
	// The hash covers the task's manifest and the id of the resource, but not the event, which
	// differs in each run.
	data, err := json.Marshal([]any{want.Object, a.Event.ID})
	if err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(data)
	event, err := json.Marshal(a.Event)
	if err != nil {
		return nil, "", err
	}
	set := func(have map[string]string, key, value string) map[string]string {
		have = maps.Clone(have)
		if have == nil {
			have = map[string]string{}
		}
		have[key] = value
		return have
	}
	want.SetAnnotations(set(want.GetAnnotations(), annotationEvent, string(event)))
	want.SetLabels(set(want.GetLabels(), LabelAdapter, t.label))
	return want, hex.EncodeToString(sum[:]), nil
}

// generationOf returns the generation in the object's annotation; 0 without one.
func generationOf(o *unstructured.Unstructured) int64 {
	n, _ := strconv.ParseInt(o.GetAnnotations()[annotationGeneration], 10, 64)
	return n
}

// isUnchanged reports whether the object still has the version and the manifest of the last Apply.
func (t *Objects) isUnchanged(at place, hash, version string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.applied[at]
	return a.hash == hash && a.version == version
}

// write applies the object and returns the result.
func (t *Objects) write(ctx context.Context, at place, want, have *unstructured.Unstructured, hash string,
	op adapter.Operation, reason string) (adapter.Applied, error) {
	if have != nil {
		// An event that differs must not be the only change of the object.
		keepEvent(want, have)
	}
	version := noVersion
	if have != nil {
		version = have.GetResourceVersion()
	}
	want.SetResourceVersion(version)
	data, err := want.MarshalJSON()
	if err != nil {
		return adapter.Applied{}, err
	}
	force := true
	t.beginWrite(at)
	got, err := t.clientFor(at.GroupVersionResource, at.namespace).Patch(ctx, at.name, types.ApplyPatchType, data,
		metav1.PatchOptions{FieldManager: t.manager, Force: &force})
	if err != nil {
		t.endWrite(at, hash, "")
		if apierrors.IsNotFound(err) {
			t.kinds.forget(want.GroupVersionKind())
		}
		return adapter.Applied{}, err
	}
	t.endWrite(at, hash, got.GetResourceVersion())
	if have != nil && have.GetUID() == got.GetUID() && have.GetResourceVersion() == got.GetResourceVersion() {
		return adapter.Applied{Operation: adapter.Skipped, Reason: fmt.Sprintf("generation %d is applied and unchanged",
			generationOf(got)), Object: got.Object}, nil
	}
	return adapter.Applied{Operation: op, Reason: reason, Object: got.Object}, nil
}

// keepEvent keeps the event annotation of the existing object when resource and generation are the
// same.
func keepEvent(want, have *unstructured.Unstructured) {
	was, now := eventOf(have.GetAnnotations()), eventOf(want.GetAnnotations())
	if was.ID == now.ID && was.Kind == now.Kind && generationOf(have) == generationOf(want) {
		a := want.GetAnnotations()
		a[annotationEvent] = have.GetAnnotations()[annotationEvent]
		want.SetAnnotations(a)
	}
}

// beginWrite records that a write is in progress: a change that a watch sees meanwhile may be this write.
func (t *Objects) beginWrite(at place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.applied[at]
	a.writing++
	t.applied[at] = a
}

// endWrite records the version that the write made, and reports the change that a watch saw meanwhile
// unless it was this write.
func (t *Objects) endWrite(at place, hash, version string) {
	t.mu.Lock()
	a := t.applied[at]
	a.writing--
	if version != "" {
		a.hash, a.version = hash, version
	}
	var report func()
	if a.held != nil && a.writing == 0 {
		if a.held.version != version {
			report = a.held.report
		}
		a.held = nil
	}
	if t.applied[at] = a; a.writing == 0 && a.version == "" {
		delete(t.applied, at) // the write failed
	}
	t.mu.Unlock()
	if report != nil {
		report()
	}
}

// recreate deletes the object, waits until it does not exist, and creates it again.
func (t *Objects) recreate(ctx context.Context, at place, want, have *unstructured.Unstructured, hash, reason string) (
	adapter.Applied, error) {
	if err := t.remove(ctx, at.GroupVersionResource, at.namespace, at.name, have.GetUID(), ""); err != nil {
		return adapter.Applied{}, fmt.Errorf("deleting it to create it again: %w", err)
	}
	if err := t.awaitDeletion(ctx, at, have.GetUID()); err != nil {
		return adapter.Applied{}, fmt.Errorf("creating it again: %w", err)
	}
	return t.write(ctx, at, want, nil, hash, adapter.Recreated, reason)
}

// awaitDeletion watches until this instance does not exist any more.
func (t *Objects) awaitDeletion(ctx context.Context, at place, uid types.UID) error {
	ctx, cancel := context.WithTimeoutCause(ctx, t.wait, errors.New("the old one is still being deleted"))
	defer cancel()
	in := t.clientFor(at.GroupVersionResource, at.namespace)
	for {
		live, err := in.Get(ctx, at.name, metav1.GetOptions{})
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		case live.GetUID() != uid:
			return nil
		}
		w, err := in.Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name",
				at.name).String(), ResourceVersion: live.GetResourceVersion(),
		})
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
			continue
		case err != nil:
			return err
		}
		for e := range w.ResultChan() {
			if e.Type == watch.Deleted || e.Type == watch.Error {
				break
			}
		}
		w.Stop()
	}
}
