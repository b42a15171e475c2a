package works

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubejson "k8s.io/apimachinery/pkg/util/json"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/adapter"
	"atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/client/maestroclient"
	"atoll.dev/internal/jsonvalue"
)

const (
	apiVersion = "work.open-cluster-management.io/v1"
	kind       = "ManifestWork"

	annotationGeneration = "hyperfleet.io/generation"
	annotationEvent      = "atoll.dev/event"

	// UnknownSince is on a work that Maestro does not have and its agent holds:
	// since when that is known, RFC 3339.
	UnknownSince = "atoll.dev/unknown-since"
)

func isWork(version, what string) error {
	if version != "" && version != apiVersion || what != "" && what != kind {
		return fmt.Errorf("Maestro ships %s %s, not %s %s", apiVersion, kind, version, what)
	}
	return nil
}

// objectOf returns the ManifestWork of a bundle, in the form that Open Cluster Management's sources
// see.
func objectOf(b *maestro.ResourceBundle) (adapter.Object, error) {
	meta := map[string]any{}
	if len(b.Metadata) > 0 {
		if err := kubejson.Unmarshal(b.Metadata, &meta); err != nil {
			return nil, fmt.Errorf("reading the metadata of the work %s: %w", b.ID, err)
		}
	}
	if name, _ := meta["name"].(string); name == "" {
		meta["name"] = b.Name
	}
	meta["namespace"], meta["uid"] = b.ConsumerName, b.ID
	meta["generation"], meta["resourceVersion"] = b.Version, strconv.FormatInt(b.Version, 10)
	meta["creationTimestamp"] = b.CreatedAt.UTC().Format(time.RFC3339)
	delete(meta, "deletionTimestamp")
	if b.DeletedAt != nil {
		meta["deletionTimestamp"] = b.DeletedAt.UTC().Format(time.RFC3339)
	}
	delete(meta, "managedFields")
	shape := struct {
		Spec   specShape   `json:"spec"`
		Status statusShape `json:"status"`
	}{Spec: specShape{DeleteOption: b.DeleteOption, ManifestConfigs: b.ManifestConfigs}}
	shape.Spec.Workload.Manifests = b.Manifests
	if b.Status != nil {
		shape.Status.Conditions = b.Status.Conditions
		shape.Status.ResourceStatus.Manifests = b.Status.ResourceStatus
	}
	data, err := json.Marshal(shape)
	if err != nil {
		return nil, fmt.Errorf("reading the work %s: %w", b.ID, err)
	}
	object := adapter.Object{}
	if err := kubejson.Unmarshal(data, &object); err != nil {
		return nil, fmt.Errorf("reading the work %s: %w", b.ID, err)
	}
	object["apiVersion"], object["kind"], object["metadata"] = apiVersion, kind, meta
	return object, nil
}

// specShape and statusShape are spec and status of a ManifestWork in JSON.
type specShape struct {
	Workload struct {
		Manifests []json.RawMessage `json:"manifests"`
	} `json:"workload"`
	DeleteOption    json.RawMessage   `json:"deleteOption,omitempty"`
	ManifestConfigs []json.RawMessage `json:"manifestConfigs,omitempty"`
}

type statusShape struct {
	Conditions     []json.RawMessage `json:"conditions,omitempty"`
	ResourceStatus struct {
		Manifests []json.RawMessage `json:"manifests,omitempty"`
	} `json:"resourceStatus"`
}

// unknownObject returns the stand-in for a work that only its agent holds.
func unknownObject(u *maestro.UnknownWork, name string) adapter.Object {
	return adapter.Object{
		"apiVersion": apiVersion, "kind": kind,
		"metadata": map[string]any{
			"name": name, "namespace": u.ConsumerName, "uid": u.ID, "generation": u.Version,
			"annotations": map[string]any{UnknownSince: u.FirstSeenAt.UTC().Format(time.RFC3339Nano)},
		},
		"spec": map[string]any{"workload": map[string]any{"manifests": []any{}}},
	}
}

// desiredBundle returns the bundle for a task's object.
func (w *Works) desiredBundle(a adapter.Application, consumer work.Consumer) (maestroclient.Bundle, error) {
	var b maestroclient.Bundle
	if err := isWork(textOf(a.Object["apiVersion"]), textOf(a.Object["kind"])); err != nil {
		return b, err
	}
	data, err := json.Marshal(a.Object)
	if err != nil {
		return b, err
	}
	var shape struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			Workload struct {
				Manifests []json.RawMessage `json:"manifests"`
			} `json:"workload"`
			DeleteOption    *workv1.DeleteOption          `json:"deleteOption"`
			ManifestConfigs []workv1.ManifestConfigOption `json:"manifestConfigs"`
			Executor        *workv1.ManifestWorkExecutor  `json:"executor"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(data, &shape); err != nil {
		return b, fmt.Errorf("this is no ManifestWork: %w", err)
	}
	event, err := json.Marshal(a.Event)
	if err != nil {
		return b, err
	}
	meta := metav1.ObjectMeta{
		Name: shape.Metadata.Name, Namespace: string(consumer), Labels: shape.Metadata.Labels, Annotations: maps.Clone(
			shape.Metadata.Annotations),
		Finalizers: shape.Metadata.Finalizers,
	}
	if meta.Annotations == nil {
		meta.Annotations = map[string]string{}
	}
	meta.Annotations[annotationEvent] = string(event)
	return maestroclient.Bundle{
		ID: w.client.BundleID(consumer, meta.Name), Consumer: consumer, Metadata: meta,
		Spec: work.Bundle{
			Manifests: shape.Spec.Workload.Manifests, DeleteOption: shape.Spec.DeleteOption,
			ManifestConfigs: shape.Spec.ManifestConfigs, Executer: shape.Spec.Executor,
		},
	}, nil
}

// bundleOf returns the published content of a bundle without its executor, which Maestro's API does
// not return.
func bundleOf(b *maestro.ResourceBundle) (maestroclient.Bundle, error) {
	own := maestroclient.Bundle{ID: work.ID(b.ID), Consumer: work.Consumer(b.ConsumerName),
		Spec: work.Bundle{Manifests: b.Manifests}}
	parts := struct {
		Metadata        *metav1.ObjectMeta             `json:"metadata"`
		DeleteOption    **workv1.DeleteOption          `json:"deleteOption"`
		ManifestConfigs *[]workv1.ManifestConfigOption `json:"manifestConfigs"`
	}{&own.Metadata, &own.Spec.DeleteOption, &own.Spec.ManifestConfigs}
	data, err := json.Marshal(map[string]any{
		"metadata": orNull(b.Metadata), "deleteOption": orNull(b.DeleteOption), "manifestConfigs": b.ManifestConfigs,
	})
	if err == nil {
		err = json.Unmarshal(data, &parts)
	}
	if err != nil {
		return own, fmt.Errorf("reading the work %s: %w", b.ID, err)
	}
	if own.Metadata.Name == "" {
		own.Metadata.Name = b.Name
	}
	own.Metadata.CreationTimestamp, own.Metadata.DeletionTimestamp = metav1.Time{}, nil
	return own, nil
}

func orNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("null")
	}
	return raw
}

// setOrphan makes the deletion of a bundle leave its objects on the cluster, and reports whether that is
// a change.
func setOrphan(b *maestroclient.Bundle) bool {
	if o := b.Spec.DeleteOption; o != nil && o.PropagationPolicy == workv1.DeletePropagationPolicyTypeOrphan {
		return false
	}
	b.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	return true
}

// isPublished reports whether the wanted bundle is published already. It does not compare the executor,
// which cannot be read. Within one generation it does not compare annotations of the work and of
// its manifests either: tasks put the time into them, and such a work would change with each run.
func isPublished(want, have maestroclient.Bundle) bool {
	sameManifest := jsonvalue.EqualOptional
	sameGeneration := generationOf(want.Metadata.Annotations) == generationOf(have.Metadata.Annotations)
	if sameGeneration {
		sameManifest = sameWithoutAnnotations
	}
	if !maps.Equal(want.Metadata.Labels, have.Metadata.Labels) ||
		!sameGeneration && !maps.Equal(withoutEvent(want), withoutEvent(have)) ||
		ownerOf(want) != ownerOf(have) ||
		len(want.Spec.Manifests) != len(have.Spec.Manifests) {
		return false
	}
	for i, m := range want.Spec.Manifests {
		if !sameManifest(m, have.Spec.Manifests[i]) {
			return false
		}
	}
	return sameValue(want.Spec.DeleteOption, have.Spec.DeleteOption) &&
		(len(want.Spec.ManifestConfigs) == 0 && len(have.Spec.ManifestConfigs) == 0 || sameValue(
			want.Spec.ManifestConfigs, have.Spec.ManifestConfigs))
}

// sameWithoutAnnotations reports whether two manifests are equal apart from their annotations.
func sameWithoutAnnotations(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, errX := jsonvalue.Decode(a)
	y, errY := jsonvalue.Decode(b)
	if errX != nil || errY != nil {
		return false
	}
	for _, m := range []any{x, y} {
		if o, ok := m.(map[string]any); ok {
			if meta, ok := o["metadata"].(map[string]any); ok {
				delete(meta, "annotations")
			}
		}
	}
	return jsonvalue.Equal(x, y)
}

// withoutEvent returns the annotations without that of the event, which is not part of the wanted
// content.
func withoutEvent(b maestroclient.Bundle) map[string]string {
	a := maps.Clone(b.Metadata.Annotations)
	delete(a, annotationEvent)
	return a
}

// ownerOf returns the id of the resource for which a bundle was applied.
func ownerOf(b maestroclient.Bundle) string {
	e, _ := eventOf(b.Metadata.Annotations)
	return e.ID
}

func eventOf(annotations map[string]string) (adapter.Event, bool) {
	var e adapter.Event
	err := json.Unmarshal([]byte(annotations[annotationEvent]), &e)
	return e, err == nil && e.ID != ""
}

// generationOf returns the generation in annotations, 0 without one.
func generationOf(annotations map[string]string) int64 {
	n, _ := strconv.ParseInt(annotations[annotationGeneration], 10, 64)
	return n
}

// sameValue reports whether two values have the same JSON.
func sameValue(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && jsonvalue.EqualOptional(x, y)
}

func decode(data []byte, into *any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return d.Decode(into)
}

func textOf(v any) string {
	s, _ := v.(string)
	return s
}

// metadataText returns a text of an object's metadata.
func metadataText(o adapter.Object, name string) string {
	meta, _ := o["metadata"].(map[string]any)
	return textOf(meta[name])
}

func hasLabels(o adapter.Object, want map[string]string) bool {
	meta, _ := o["metadata"].(map[string]any)
	labels, _ := meta["labels"].(map[string]any)
	for k, v := range want {
		if textOf(labels[k]) != v {
			return false
		}
	}
	return true
}
