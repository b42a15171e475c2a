package hosting

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/hosting/loop"
	"atoll.dev/internal/secreterror"
)

// secretStore is the name of the ClusterSecretStore that hosting implements: the
// Secrets of its own namespace that it may read. Hosting ignores ExternalSecrets of
// other stores.
const secretStore = "atoll"

const (
	dockerConfigType = "kubernetes.io/dockerconfigjson"
	dockerConfigKey  = ".dockerconfigjson"
)

func externalSecrets() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "external-secrets.io", Version: "v1", Resource: "externalsecrets"}
}

// externalSecret is the part of External Secrets Operator's kind that hosting
// implements; see its API reference, external-secrets.io/v1.
type externalSecret struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		SecretStoreRef struct {
			Kind string `json:"kind"`
			Name string `json:"name"`
		} `json:"secretStoreRef"`
		Target struct {
			Name           string `json:"name"`
			CreationPolicy string `json:"creationPolicy"` // Owner (default) or Orphan
			Template       struct {
				Type string `json:"type"`
			} `json:"template"`
		} `json:"target"`
		Data []struct {
			SecretKey string    `json:"secretKey"`
			RemoteRef remoteRef `json:"remoteRef"`
		} `json:"data"`
		DataFrom []struct {
			Extract *remoteRef `json:"extract"`
		} `json:"dataFrom"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// remoteRef names a Secret of hosting's namespace, and its key when it has several.
type remoteRef struct {
	Key      string `json:"key"`
	Property string `json:"property"`
}

// secretKeeper copies Secrets as ExternalSecrets order.
type secretKeeper struct{ client dynamic.Interface }

func (k *secretKeeper) reconcile(ctx context.Context, _ loop.Key, object *unstructured.Unstructured) (time.Duration,
	error) {
	if object == nil || object.GetDeletionTimestamp() != nil {
		return 0, nil // the garbage collector deletes the Secret, or it stays on purpose
	}
	es, err := loop.Decode[externalSecret](object)
	if err != nil {
		return 0, err
	}
	if es.Spec.SecretStoreRef.Name != secretStore || es.Spec.SecretStoreRef.Kind != "ClusterSecretStore" {
		return 0, nil
	}
	condition := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "SecretSynced",
		Message: "the Secret is as it should be"}
	err = k.copySecret(ctx, es)
	if err != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "SecretSyncedError", err.Error()
	}
	condition.ObservedGeneration = es.Generation
	conditions := slices.Clone(es.Status.Conditions)
	if meta.SetStatusCondition(&conditions, condition) {
		body, merr := json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions}})
		if merr != nil {
			return 0, merr
		}
		_, perr := k.client.Resource(externalSecrets()).Namespace(es.Namespace).Patch(ctx, es.Name,
			types.MergePatchType, body, metav1.PatchOptions{}, "status")
		if perr != nil && !loop.IsGone(perr) {
			return 0, fmt.Errorf("status of ExternalSecret %s/%s: %w", es.Namespace, es.Name, perr)
		}
	}
	return 0, err
}

func (k *secretKeeper) copySecret(ctx context.Context, es *externalSecret) error {
	data := map[string]any{}
	for _, d := range es.Spec.Data {
		values, err := k.read(ctx, d.RemoteRef)
		if err != nil {
			return err
		}
		if len(values) != 1 {
			return fmt.Errorf("%s has %d keys: name one with property", d.RemoteRef.Key, len(values))
		}
		for _, v := range values {
			data[d.SecretKey] = v
		}
	}
	for _, d := range es.Spec.DataFrom {
		if d.Extract == nil {
			return fmt.Errorf("dataFrom knows extract only")
		}
		values, err := k.read(ctx, *d.Extract)
		if err != nil {
			return err
		}
		for key, v := range values {
			data[key] = v
		}
	}
	name, kind := es.Spec.Target.Name, es.Spec.Target.Template.Type
	if name == "" {
		name = es.Name
	}
	if _, docker := data[dockerConfigKey]; docker && kind == "" {
		kind = dockerConfigType
	}
	secret := map[string]any{
		"apiVersion": "v1", "kind": "Secret", "data": data,
		"metadata": map[string]any{"name": name, "namespace": es.Namespace, "labels": map[string]any{
			"app.kubernetes.io/managed-by": "atoll"}},
	}
	if kind != "" {
		secret["type"] = kind
	}
	if es.Spec.Target.CreationPolicy != "Orphan" {
		secret["metadata"].(map[string]any)["ownerReferences"] = []any{ownerReference(es.TypeMeta, es.ObjectMeta)}
	}
	return applySecret(ctx, k.client, secret)
}

// read returns values of a shared Secret, in base64.
func (k *secretKeeper) read(ctx context.Context, ref remoteRef) (map[string]string, error) {
	s, err := k.client.Resource(secrets()).Namespace(apihosting.SystemNamespace).Get(ctx, ref.Key, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("the store has no secret %q: %w", ref.Key, err)
	}
	data, _, _ := unstructured.NestedStringMap(s.Object, "data")
	if ref.Property == "" {
		return data, nil
	}
	v, ok := data[ref.Property]
	if !ok {
		return nil, fmt.Errorf("the secret %q has no %q", ref.Key, ref.Property)
	}
	return map[string]string{ref.Property: v}, nil
}

// ownerReference names an object as the owner of another, which the garbage
// collector deletes with it.
func ownerReference(t metav1.TypeMeta, m metav1.ObjectMeta) map[string]any {
	return map[string]any{"apiVersion": t.APIVersion, "kind": t.Kind, "name": m.Name, "uid": string(m.UID)}
}

// fieldManager is the field manager of hosting's applies.
const fieldManager = "atoll-hosting"

func applySecret(ctx context.Context, client dynamic.Interface, secret map[string]any) error {
	body, err := json.Marshal(secret)
	if err != nil {
		return err
	}
	md := secret["metadata"].(map[string]any)
	ns, name := md["namespace"].(string), md["name"].(string)
	force := true
	_, err = client.Resource(secrets()).Namespace(ns).Patch(ctx, name, types.ApplyPatchType, body, metav1.PatchOptions{
		FieldManager: fieldManager, Force: &force})
	if err != nil {
		return fmt.Errorf("secret %s/%s: %w", ns, name, secreterror.Hide(err))
	}
	return nil
}

// encode returns a value in the form of a Secret's data.
func encode(value []byte) string { return base64.StdEncoding.EncodeToString(value) }
