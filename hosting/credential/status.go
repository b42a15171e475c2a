package credential

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/hosting/loop"
)

// refuse reports that the Credential has no certificate, and why.
func (i *issuer) refuse(ctx context.Context, object *unstructured.Unstructured, c *apihosting.Credential, reason,
	message string) error {
	return i.report(ctx, object, c, apihosting.CredentialStatus{ExpirationTimestamp: c.Status.ExpirationTimestamp},
		metav1.ConditionFalse, reason, message)
}

// report writes a status with the given condition Issued, unless the object has it
// already.
func (i *issuer) report(ctx context.Context, object *unstructured.Unstructured, c *apihosting.Credential,
	status apihosting.CredentialStatus, is metav1.ConditionStatus, reason, message string) error {
	status.Conditions = slices.Clone(c.Status.Conditions)
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: apihosting.Issued, Status: is, Reason: reason, Message: message, ObservedGeneration: object.GetGeneration(),
	})
	if equality.Semantic.DeepEqual(status, c.Status) {
		return nil
	}
	wire := map[string]any{ // null takes away
		"certificate": nullable(status.Certificate), "caBundle": nullable(status.CABundle), "server": nullable(
			status.Server),
		"tlsServerName": nullable(status.TLSServerName), "expirationTimestamp": status.ExpirationTimestamp,
		"conditions": status.Conditions,
	}
	patch, err := json.Marshal(map[string]any{"status": wire})
	if err != nil {
		return err
	}
	_, err = i.resource(object).Patch(ctx, object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !loop.IsGone(err) {
		return fmt.Errorf("the status of Credential %s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	return nil
}

func nullable(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// resource returns the client for the namespace of a Credential.
func (i *issuer) resource(object *unstructured.Unstructured) dynamic.ResourceInterface {
	return i.client.Resource(apihosting.Credentials()).Namespace(object.GetNamespace())
}

func hasFinalizer(object *unstructured.Unstructured) bool {
	return slices.Contains(object.GetFinalizers(), finalizer)
}

// addFinalizer adds the finalizer, which keeps the Credential until its binding is removed.
func (i *issuer) addFinalizer(ctx context.Context, object *unstructured.Unstructured) error {
	return i.replaceFinalizers(ctx, object, append(slices.Clone(object.GetFinalizers()), finalizer))
}

// removeFinalizer removes the finalizer.
func (i *issuer) removeFinalizer(ctx context.Context, object *unstructured.Unstructured) error {
	rest := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == finalizer })
	return i.replaceFinalizers(ctx, object, rest)
}

// replaceFinalizers replaces the list of an object. It fails when the object has changed since it was read.
func (i *issuer) replaceFinalizers(ctx context.Context, object *unstructured.Unstructured, list []string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": list,
		"resourceVersion": object.GetResourceVersion(), "uid": object.GetUID()}})
	if err != nil {
		return err
	}
	_, err = i.resource(object).Patch(ctx, object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !loop.IsGone(err) {
		return fmt.Errorf("the finalizers of Credential %s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	return nil
}
