package nodes

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kwok/pkg/kwok/controllers"
)

// leases renews the leases by which the controller manager knows that the nodes live. They are read
// when they are renewed: a watch would bring every renewal back to the one who made it.
func (s *simulation) leases(ctx context.Context) (*controllers.NodeLeaseController, error) {
	leases, err := controllers.NewNodeLeaseController(controllers.NodeLeaseControllerConfig{
		TypedClient:          s.client,
		HolderIdentity:       holder,
		LeaseDurationSeconds: leaseSeconds,
		LeaseParallelism:     workers,
		RenewInterval:        leaseSeconds * time.Second / 4,
		RenewIntervalJitter:  0.04,
		GetLease: func(node string) (*coordinationv1.Lease, bool) {
			lease, err := s.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
			if err != nil {
				return nil, false // one that is there but could not be read is not made twice: the API server refuses that
			}
			return lease, true
		},
		MutateLeaseFunc: s.own,
	})
	if err != nil {
		return nil, fmt.Errorf("preparing node leases: %w", err)
	}
	return leases, nil
}

// own makes the node the owner of its lease, so that it goes with it; of a former node's lease, too,
// which has the name and would be collected.
func (s *simulation) own(lease *coordinationv1.Lease) error {
	if node, ok := s.nodes.Get(lease.Name); ok {
		lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	}
	return nil
}
