package nodepool

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

//go:embed kubeletpolicy.yaml
var kubeletPolicy []byte

// restrictKubelets applies the policy that keeps kubelets from the labels and annotations of their node pools, and from
// creating Nodes, in the plane of a cluster with real nodes. A customer who has changed the policy keeps the change.
// After a success it does nothing for this watched plane.
func (s *watchedPlane) restrictKubelets(ctx context.Context) error {
	s.mu.Lock()
	done := s.restricted
	s.mu.Unlock()
	if done {
		return nil
	}
	for document := range bytes.SplitSeq(kubeletPolicy, []byte("---\n")) {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return fmt.Errorf("the policy of kubelets: %w", err)
		}
		resource := policyResource()
		if object.GetKind() != "ValidatingAdmissionPolicy" {
			resource.Resource = "validatingadmissionpolicybindings"
		}
		if err := s.applyUnlessChanged(ctx, resource, object); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.restricted = true
	s.mu.Unlock()
	return nil
}

func policyResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1",
		Resource: "validatingadmissionpolicies"}
}
