package works

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"atoll.dev/adapter"
	"atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
)

// attempts bounds how often Apply reads again when others change the work at the same time.
const attempts = 4

// Apply implements adapter.Transport. It leaves a work alone that has the wanted content or a higher
// generation.
func (w *Works) Apply(ctx context.Context, a adapter.Application) (adapter.Applied, error) {
	consumer := cmp.Or(a.TargetCluster, work.Consumer(metadataText(a.Object, "namespace")))
	name := metadataText(a.Object, "name")
	if consumer == "" || name == "" {
		return adapter.Applied{}, errors.New("a work needs a name and a target cluster")
	}
	want, err := w.desiredBundle(a, consumer)
	if err != nil {
		return adapter.Applied{}, fmt.Errorf("the work %s: %w", name, err)
	}
	var done adapter.Applied
	for range attempts {
		done, err = w.applyOnce(ctx, a, want)
		if status := remote.StatusOf(err); status != http.StatusPreconditionFailed && status != http.StatusConflict {
			break
		}
	}
	if err != nil {
		return done, fmt.Errorf("applying the work %s to %s: %w", name, consumer, err)
	}
	return done, nil
}

// applyOnce reads the work and creates, updates or leaves it.
func (w *Works) applyOnce(
	ctx context.Context,
	a adapter.Application,
	want maestroclient.Bundle,
) (adapter.Applied, error) {
	b, etag, err := w.readBundle(ctx, want.ID)
	switch {
	case err != nil:
		return adapter.Applied{}, err
	case a.OnlyExisting && (b == nil || b.DeletedAt != nil):
		return adapter.Applied{Operation: adapter.Skipped,
			Reason: "its resource is being deleted: it is not made again"}, nil
	case b == nil:
		return w.create(ctx, want, adapter.Created, "there was none")
	case b.DeletedAt != nil:
		return adapter.Applied{}, ErrUnderDeletion
	}
	have, err := bundleOf(b)
	if err != nil {
		return adapter.Applied{}, err
	}
	was := generationOf(have.Metadata.Annotations)
	switch {
	case was > a.Generation:
		return adapter.Applied{Operation: adapter.Skipped, Reason: fmt.Sprintf(
			"generation %d is applied, which is newer than %d", was, a.Generation), Object: mustObject(b)}, nil
	case isPublished(want, have):
		return adapter.Applied{Operation: adapter.Skipped, Reason: fmt.Sprintf("generation %d is applied and unchanged",
			was), Object: mustObject(b)}, nil
	case a.Recreate && was != a.Generation && !a.OnlyExisting:
		return w.recreate(ctx, b, etag, want, was, a.Generation)
	}
	reason := fmt.Sprintf("generation %d became %d", was, a.Generation)
	if was == a.Generation {
		reason = fmt.Sprintf("it was not as generation %d wants it", was)
	}
	want.IfMatch = etag
	w.recordAppliedVersion(work.ID(b.ID), b.Version+1)
	if _, err := w.client.UpdateBundle(ctx, want); err != nil {
		w.recordAppliedVersion(work.ID(b.ID), b.Version)
		return adapter.Applied{}, err
	}
	b.Version++
	return w.applied(b, want, adapter.Updated, reason)
}

func (w *Works) create(ctx context.Context, want maestroclient.Bundle, op adapter.Operation, reason string) (
	adapter.Applied,
	error) {
	w.recordAppliedVersion(want.ID, 1)
	if _, err := w.client.CreateBundle(ctx, want); err != nil {
		w.recordAppliedVersion(want.ID, 0)
		return adapter.Applied{}, err
	}
	now := time.Now()
	return w.applied(&maestro.ResourceBundle{ID: string(want.ID), ConsumerName: string(want.Consumer), Version: 1,
		CreatedAt: now},
		want, op, reason)
}

// recordAppliedVersion records the version that Apply is about to make, so that Watch does not report it; 0 removes the
// record.
func (w *Works) recordAppliedVersion(id work.ID, version int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if version == 0 {
		delete(w.appliedVersions, id)
	} else {
		w.appliedVersions[id] = version
	}
}

// applied returns the result: the bundle with the published content.
func (w *Works) applied(b *maestro.ResourceBundle, want maestroclient.Bundle, op adapter.Operation, reason string) (
	adapter.Applied, error) {
	var err error
	if b.Metadata, err = json.Marshal(want.Metadata); err != nil {
		return adapter.Applied{}, err
	}
	b.Manifests, b.DeleteOption, b.ManifestConfigs = want.Spec.Manifests, nil, nil
	if want.Spec.DeleteOption != nil {
		if b.DeleteOption, err = json.Marshal(want.Spec.DeleteOption); err != nil {
			return adapter.Applied{}, err
		}
	}
	for _, c := range want.Spec.ManifestConfigs {
		raw, err := json.Marshal(c)
		if err != nil {
			return adapter.Applied{}, err
		}
		b.ManifestConfigs = append(b.ManifestConfigs, raw)
	}
	object, err := objectOf(b)
	return adapter.Applied{Operation: op, Reason: reason, Object: object}, err
}

// mustObject is objectOf for a bundle that objectOf has accepted before.
func mustObject(b *maestro.ResourceBundle) adapter.Object {
	object, _ := objectOf(b)
	return object
}

// recreate deletes the work, waits until its agent has confirmed the deletion, and creates it again. It
// waits at most RecreateWait, because an agent may be away; then it fails, and a run after the deletion
// creates the work.
func (w *Works) recreate(ctx context.Context, b *maestro.ResourceBundle, etag string, want maestroclient.Bundle, was,
	wants int64) (adapter.Applied, error) {
	if err := w.remove(ctx, b, etag, ""); err != nil {
		return adapter.Applied{}, err
	}
	if err := w.awaitDeletion(ctx, work.ID(b.ID)); err != nil {
		return adapter.Applied{}, err
	}
	return w.create(ctx, want, adapter.Recreated, fmt.Sprintf("generation %d became %d", was, wants))
}

func (w *Works) awaitDeletion(ctx context.Context, id work.ID) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.wait, ErrUnderDeletion)
	defer cancel()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		b, _, err := w.readBundle(ctx, id)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case b == nil:
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}
