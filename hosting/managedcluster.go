package hosting

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
)

// Conditions of a ManagedCluster, as Open Cluster Management writes them.
const (
	hubAccepted      = "HubAcceptedManagedCluster"
	managedJoined    = "ManagedClusterJoined"
	managedAvailable = "ManagedClusterConditionAvailable"
)

// managedRetry is the time until a ManagedCluster that could not be written is tried again.
const managedRetry = 30 * time.Second

func managedClusters() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "cluster.open-cluster-management.io", Version: "v1",
		Resource: "managedclusters"}
}

// managedCluster is the part of Open Cluster Management's kind that hosting writes.
type managedCluster struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        managedMetadata       `json:"metadata"`
	Spec            *managedClusterSpec   `json:"spec,omitempty"`
	Status          *managedClusterStatus `json:"status,omitempty"`
}

type managedMetadata struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type managedClusterSpec struct {
	HubAcceptsClient     bool               `json:"hubAcceptsClient"`
	LeaseDurationSeconds int32              `json:"leaseDurationSeconds"`
	ClientConfigs        []managedClientURL `json:"managedClusterClientConfigs,omitempty"`
}

type managedClientURL struct {
	URL string `json:"url"`
}

type managedClusterStatus struct {
	Version    managedVersion     `json:"version"`
	Claims     []managedClaim     `json:"clusterClaims"`
	Conditions []metav1.Condition `json:"conditions"`
}

type managedVersion struct {
	Kubernetes string `json:"kubernetes,omitempty"`
}

type managedClaim struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// toManagedCluster returns the ManagedCluster of a HostedCluster with a status. It depends on the arguments only: all
// times in it are those of the HostedCluster. As in Open Cluster Management, a cluster joins when its API has served
// for the first time, and has no condition about its availability before.
func toManagedCluster(hc *hypershift.HostedCluster, status hypershift.HostedClusterStatus) managedCluster {
	m := managedCluster{
		TypeMeta: metav1.TypeMeta{APIVersion: managedClusters().GroupVersion().String(), Kind: "ManagedCluster"},
		Metadata: managedMetadata{Name: hc.Spec.ClusterID, Labels: map[string]string{"app.kubernetes.io/managed-by": "atoll",
			"name": hc.Spec.ClusterID, "api.openshift.com/id": hc.Spec.ClusterID, "cloud": "Other", "vendor": "Other"},
			Annotations: map[string]string{"hosting.atoll.dev/hosted-cluster": hc.Namespace + "/" + hc.Name,
				"open-cluster-management/created-via":                      "hypershift",
				"import.open-cluster-management.io/klusterlet-deploy-mode": "Hosted"}},
		Spec: &managedClusterSpec{HubAcceptsClient: true, LeaseDurationSeconds: 60},
		Status: &managedClusterStatus{Claims: []managedClaim{{"id.k8s.io", hc.Spec.ClusterID}},
			Conditions: []metav1.Condition{{Type: hubAccepted, Status: metav1.ConditionTrue,
				LastTransitionTime: hc.CreationTimestamp, Reason: "HubClusterAdminAccepted",
				Message: "Accepted by hub cluster admin"}}},
	}
	if e := status.ControlPlaneEndpoint; e.Host != "" {
		m.Spec.ClientConfigs = []managedClientURL{{"https://" + net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))}}
	}
	if status.Version == nil {
		return m
	}
	history := status.Version.History // newest first
	isServed := func(u hypershift.UpdateHistory) bool {
		return u.State == hypershift.Completed && u.CompletionTime != nil
	}
	latest := slices.IndexFunc(history, isServed)
	if latest < 0 {
		return m
	}
	m.Status.Version.Kubernetes = "v" + history[latest].Version
	m.Status.Claims = append(m.Status.Claims, managedClaim{"kubeversion.open-cluster-management.io",
		m.Status.Version.Kubernetes})
	first := history[latest]
	for _, u := range history {
		if isServed(u) {
			first = u
		}
	}
	m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{Type: managedJoined,
		Status: metav1.ConditionTrue, LastTransitionTime: *first.CompletionTime, Reason: "ManagedClusterJoined",
		Message: "Managed cluster joined"})
	if c := meta.FindStatusCondition(status.Conditions, hypershift.Available); c != nil {
		available := metav1.Condition{Type: managedAvailable, Status: c.Status, LastTransitionTime: c.LastTransitionTime,
			Reason: "ManagedClusterAvailable", Message: "Managed cluster is available"}
		if c.Status != metav1.ConditionTrue {
			available.Reason, available.Message = "ManagedClusterKubeAPIServerUnavailable", c.Message
		}
		m.Status.Conditions = append(m.Status.Conditions, available)
	}
	return m
}

// managedUse is whether hosting writes ManagedClusters.
type managedUse uint8

const (
	managedUnknown managedUse = iota
	managedWritten
	managedForeign // Open Cluster Management writes them, or nobody
)

// writesManagedClusters reports whether hosting writes ManagedClusters. It does where the kind is Atoll's: in a hub of
// Open Cluster Management the hub writes them, and a cluster that was bootstrapped before has none.
func (h *Hosting) writesManagedClusters(ctx context.Context) (bool, error) {
	h.mu.Lock()
	known := h.managed
	h.mu.Unlock()
	if known != managedUnknown {
		return known == managedWritten, nil
	}
	name := managedClusters().Resource + "." + managedClusters().Group
	crd, err := h.o.Client.Resource(customResources()).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil && crd.GetLabels()["app.kubernetes.io/managed-by"] == "atoll":
		known = managedWritten
	case err == nil || apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		known = managedForeign
		h.o.Log.Info("hosting writes no ManagedClusters: their kind is not Atoll's; see `atoll mc bootstrap`", "kind", name)
	default:
		return false, fmt.Errorf("the kind of ManagedClusters: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.managed = known
	return known == managedWritten, nil
}

// writeManagedCluster writes the ManagedCluster of a HostedCluster if it has changed. A HostedCluster without an id, as
// somebody may make it by hand, has none.
func (h *Hosting) writeManagedCluster(ctx context.Context, c *hostedCluster, hc *hypershift.HostedCluster) error {
	if hc.Spec.ClusterID == "" || c.status == nil {
		return nil
	}
	wanted := toManagedCluster(hc, *c.status)
	all, err := json.Marshal(wanted)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(all)
	if sum == c.managed {
		return nil
	}
	if writes, err := h.writesManagedClusters(ctx); err != nil || !writes {
		return err
	}
	status := wanted
	wanted.Status, status.Spec, status.Metadata = nil, nil, managedMetadata{Name: wanted.Metadata.Name}
	force := true
	for _, part := range []struct {
		object       managedCluster
		subresources []string
	}{{wanted, nil}, {status, []string{"status"}}} {
		body, err := json.Marshal(part.object)
		if err != nil {
			return err
		}
		if _, err := h.o.Client.Resource(managedClusters()).Patch(ctx, wanted.Metadata.Name, types.ApplyPatchType, body,
			metav1.PatchOptions{FieldManager: fieldManager, Force: &force}, part.subresources...); err != nil {
			return fmt.Errorf("ManagedCluster %s: %w", wanted.Metadata.Name, err)
		}
	}
	c.managed = sum
	return nil
}

// deleteManagedCluster deletes the ManagedCluster of a HostedCluster that is deleted.
func (h *Hosting) deleteManagedCluster(ctx context.Context, id controlplane.ID,
	object *unstructured.Unstructured) error {
	name, _, _ := unstructured.NestedString(object.Object, "spec", "clusterID")
	if name == "" {
		return nil
	}
	if writes, err := h.writesManagedClusters(ctx); err != nil || !writes {
		return err
	}
	err := h.o.Client.Resource(managedClusters()).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("ManagedCluster %s of %s: %w", name, id, err)
	}
	return nil
}
