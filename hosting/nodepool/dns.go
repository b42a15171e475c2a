package nodepool

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

//go:embed dns.yaml
var dnsManifests []byte

// dnsService is the index of the DNS Service's address in the network of Services. Kubelets write this address
// into the pods' resolv.conf.
const dnsService = 10

// dnsInterval is the shortest time between two applications of DNS in one plane. A deleted object of it is made again
// by the first change of a Node after that; kubelets change theirs every five minutes.
const dnsInterval = 5 * time.Minute

// managedByHosting marks the Service of DNS that hosting has made.
var managedByHosting = map[string]string{"app.kubernetes.io/managed-by": "hosting.atoll.dev"}

// applyDNS applies CoreDNS in the plane of a cluster with real nodes. It changes nothing in a cluster that has a
// Service kube-dns of its own, or another Service with the address of DNS. It leaves an object alone when somebody else
// has changed a field that hosting would set.
func (s *watchedPlane) applyDNS(ctx context.Context, now time.Time) error {
	s.mu.Lock()
	recent := now.Sub(s.dnsApplied) < dnsInterval
	s.mu.Unlock()
	if recent {
		return nil
	}
	services, err := s.serviceNetwork(ctx)
	if err != nil {
		return err
	}
	objects, err := dnsObjects(services)
	if err != nil {
		return err
	}
	foreign, err := s.hasOwnDNS(ctx)
	if err != nil {
		return err
	}
	if !foreign {
		for _, object := range objects {
			version, err := schema.ParseGroupVersion(object.GetAPIVersion())
			if err != nil {
				return err
			}
			err = s.applyUnlessChanged(ctx, version.WithResource(strings.ToLower(object.GetKind())+"s"), object)
			if apierrors.IsInvalid(err) && object.GetKind() == "Service" {
				break // the address of DNS is that of a Service of the customer
			}
			if err != nil {
				return err
			}
		}
	}
	s.mu.Lock()
	s.dnsApplied = now
	s.mu.Unlock()
	return nil
}

// dnsObjects returns the objects of dns.yaml for a network of Services.
func dnsObjects(services netip.Prefix) ([]*unstructured.Unstructured, error) {
	address, ok := offset(services, dnsService)
	if !ok {
		return nil, fmt.Errorf("the network of Services %s has no address for DNS", services)
	}
	var objects []*unstructured.Unstructured
	for document := range bytes.SplitSeq(dnsManifests, []byte("---\n")) {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return nil, err
		}
		labels := object.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, managedByHosting)
		object.SetLabels(labels)
		if object.GetKind() == "Service" {
			if err := unstructured.SetNestedField(object.Object, address.String(), "spec", "clusterIP"); err != nil {
				return nil, err
			}
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// hasOwnDNS reports whether the cluster has a Service kube-dns that hosting has not made.
func (s *watchedPlane) hasOwnDNS(ctx context.Context) (bool, error) {
	resource := schema.GroupVersionResource{Version: "v1", Resource: "services"}
	object, err := s.client.Resource(resource).Namespace("kube-system").Get(ctx, "kube-dns", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the Service of DNS of %s: %w", s.cluster, err)
	}
	for label, value := range managedByHosting {
		if object.GetLabels()[label] != value {
			return true, nil
		}
	}
	return false, nil
}

// applyUnlessChanged applies an object. It leaves the object as it is when another writer has set one of its fields to
// another value.
func (s *watchedPlane) applyUnlessChanged(ctx context.Context, resource schema.GroupVersionResource,
	object *unstructured.Unstructured) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	force := false
	_, err = s.client.Resource(resource).Namespace(object.GetNamespace()).Patch(ctx, object.GetName(),
		types.ApplyPatchType, text, metav1.PatchOptions{FieldManager: fieldManager, Force: &force})
	if err != nil && !isFieldConflict(err) {
		return fmt.Errorf("applying %s %s in %s: %w", object.GetKind(), object.GetName(), s.cluster, err)
	}
	return nil
}

// isFieldConflict reports whether an API server has refused to apply an object because another writer owns a field.
func isFieldConflict(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.ErrStatus.Details == nil {
		return false
	}
	for _, cause := range status.ErrStatus.Details.Causes {
		if cause.Type == metav1.CauseTypeFieldManagerConflict {
			return true
		}
	}
	return false
}
