package hosting

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/hypershift"
)

// A ManagedCluster has the conditions that Open Cluster Management would write, at the times of the HostedCluster.
func TestAManagedClusterFollowsItsHostedCluster(t *testing.T) {
	at := func(minute int) metav1.Time { return metav1.NewTime(time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)) }
	done := func(minute int) *metav1.Time { time := at(minute); return &time }
	hc := &hypershift.HostedCluster{}
	hc.Namespace, hc.Name, hc.CreationTimestamp, hc.Spec.ClusterID = "ns", "hc", at(0), "id"
	available := func(status metav1.ConditionStatus, minute int) []metav1.Condition {
		return []metav1.Condition{{Type: hypershift.Available, Status: status, LastTransitionTime: at(minute),
			Message: "why"}}
	}
	version := func(history ...hypershift.UpdateHistory) *hypershift.ClusterVersionStatus {
		return &hypershift.ClusterVersionStatus{History: history}
	}
	old := hypershift.UpdateHistory{State: hypershift.Completed, CompletionTime: done(1), Version: "1.35.9"}
	accepted := "HubAcceptedManagedCluster=True@0"
	for name, c := range map[string]struct {
		status hypershift.HostedClusterStatus
		want   string
	}{
		"no status": {hypershift.HostedClusterStatus{}, " " + accepted},
		"starting": {hypershift.HostedClusterStatus{Conditions: available("False", 1), Version: version(
			hypershift.UpdateHistory{State: hypershift.Partial, Version: "1.36.3"})}, " " + accepted},
		"available": {hypershift.HostedClusterStatus{Conditions: available("True", 1), Version: version(old)},
			"v1.35.9 " + accepted + " ManagedClusterJoined=True@1 ManagedClusterConditionAvailable=True@1"},
		"down during an upgrade": {hypershift.HostedClusterStatus{Conditions: available("False", 5), Version: version(
			hypershift.UpdateHistory{State: hypershift.Partial, Version: "1.36.3"}, old)},
			"v1.35.9 " + accepted + " ManagedClusterJoined=True@1 ManagedClusterConditionAvailable=False@5"},
		"upgraded": {hypershift.HostedClusterStatus{Conditions: available("True", 7), Version: version(
			hypershift.UpdateHistory{State: hypershift.Completed, CompletionTime: done(7), Version: "1.36.3"}, old)},
			"v1.36.3 " + accepted + " ManagedClusterJoined=True@1 ManagedClusterConditionAvailable=True@7"},
	} {
		m := toManagedCluster(hc, c.status)
		got := []string{m.Status.Version.Kubernetes}
		for _, condition := range m.Status.Conditions {
			got = append(got, fmt.Sprintf("%s=%s@%d", condition.Type, condition.Status,
				condition.LastTransitionTime.Minute()))
		}
		if text := strings.Join(got, " "); text != c.want || m.Metadata.Name != "id" || !m.Spec.HubAcceptsClient {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
	}
}

// managed checks that an available HostedCluster becomes a ManagedCluster that is accepted, joined and available.
func (w *world) managed(hc *hypershift.HostedCluster) {
	w.Helper()
	w.wait("the ManagedCluster", func() error {
		object, err := w.admin.Resource(managedClusters()).Get(w.Context(), hc.Spec.ClusterID, metav1.GetOptions{})
		if err != nil {
			return err
		}
		data, err := json.Marshal(object.Object["status"])
		if err != nil {
			return err
		}
		var status managedClusterStatus
		if err := json.Unmarshal(data, &status); err != nil {
			return err
		}
		isTrue := map[string]bool{}
		for _, c := range status.Conditions {
			isTrue[c.Type] = c.Status == metav1.ConditionTrue
		}
		if !isTrue[hubAccepted] || !isTrue[managedJoined] || !isTrue[managedAvailable] ||
			status.Version.Kubernetes != "v1.36.3" {
			return fmt.Errorf("%w: %s", errStill, data)
		}
		return nil
	})
}

// unmanaged checks that the ManagedCluster of the deleted HostedCluster is deleted.
func (w *world) unmanaged() {
	w.Helper()
	_, err := w.admin.Resource(managedClusters()).Get(w.Context(), w.prefix, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		w.Errorf("the ManagedCluster of the deleted HostedCluster: %v", err)
	}
}
