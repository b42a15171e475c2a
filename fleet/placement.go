package fleet

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

// KindPlacement is the store's kind of placements: one for each cluster for which an adapter has requested a
// place, until fleet releases it.
const KindPlacement store.Kind = "Placement"

// Kinds returns the store's kinds that fleet needs besides CLM's entities.
func Kinds() []store.KindSpec {
	return []store.KindSpec{{Kind: KindPlacement, Render: render, History: true}}
}

// placementID returns the id of a cluster's placement. It differs from the cluster's id, because CLM finds
// resources of unknown kind by their ids.
func placementID(cluster cluster.ID) string { return "placement-" + string(cluster) }

// clusterOf returns the cluster of a placement's id.
func clusterOf(placement string) cluster.ID {
	return cluster.ID(strings.TrimPrefix(placement, "placement-"))
}

// placementRequest is a placement's spec: its cluster and demand.
type placementRequest struct {
	ClusterID cluster.ID `json:"cluster_id"`
	Demand    Demand     `json:"demand"`
}

// placementDecision is a placement's status.
type placementDecision struct {
	State api.PlacementState `json:"state"`
	// The management cluster's name and id, "" while it waits.
	ManagementCluster   cluster.ManagementCluster   `json:"management_cluster"`
	ManagementClusterID cluster.ManagementClusterID `json:"management_cluster_id"`
	DecidedTime         time.Time                   `json:"decided_time"`
	// Size is the size class for which the placement reserves room, "" for small; WantedSize is one for which there was
	// no room, "" for none.
	Size       cluster.Size `json:"size,omitempty"`
	WantedSize cluster.Size `json:"wanted_size,omitempty"`
	// Message is why the cluster waits, as its owner reads it.
	Message string `json:"message,omitempty"`
	// When fleet found that the cluster does not exist any more, and the actor who removed it; nil: it exists.
	OrphanedTime *time.Time `json:"orphaned_time,omitempty"`
	RemovedBy    string     `json:"removed_by,omitempty"`
	// Move is the last move; nil: the cluster has never moved.
	Move *moveState `json:"move,omitempty"`
	// Embedded, because documents of older versions have its candidates at this level.
	Explanation
}

// placement is a decoded placement document.
type placement struct {
	placementRequest
	placementDecision
}

// placementOf decodes a placement's document.
func placementOf(d store.Document) (p placement, err error) {
	if err = json.Unmarshal(d.Spec, &p.placementRequest); err == nil {
		err = json.Unmarshal(d.Status, &p.placementDecision)
	}
	if err != nil {
		err = fmt.Errorf("reading %s: %w", d.ID, err)
	}
	if p.Objections == nil { // a decision of an older version
		p.Considered, p.Objections = len(p.Candidates), []api.Objection{}
	}
	return p, err
}

// reservation is a placement with only the members that the inventory keeps.
type reservation struct {
	placementRequest
	ManagementClusterID cluster.ManagementClusterID `json:"management_cluster_id"`
	OrphanedTime        *time.Time                  `json:"orphaned_time"`
	Size                cluster.Size                `json:"size"`
	WantedSize          cluster.Size                `json:"wanted_size"`
	Move                *moveState                  `json:"move"`
}

// reservationOf decodes a placement without its explanation, for the inventory.
func reservationOf(d store.Document) (r reservation, err error) {
	if err = json.Unmarshal(d.Spec, &r.placementRequest); err == nil {
		err = json.Unmarshal(d.Status, &r)
	}
	if err != nil {
		err = fmt.Errorf("reading %s: %w", d.ID, err)
	}
	return r, err
}

// encodeInto sets a document's spec and status to those of the placement.
func (p placement) encodeInto(d *store.Document) (err error) {
	if d.Spec, err = json.Marshal(p.placementRequest); err == nil {
		d.Status, err = json.Marshal(p.placementDecision)
	}
	return err
}

// reserved returns the amounts that the placement reserves on each of reservedOn.
func (p placement) reserved() Amounts {
	if p.State == api.Waiting {
		return Amounts{}
	}
	return p.Demand.Amounts
}

// reservedOn returns the management clusters on which the placement reserves its amounts, in the order in which a
// transaction locks their sums: none while it waits, two before the plane of a move has arrived.
func (p placement) reservedOn() (ids []cluster.ManagementClusterID) {
	if p.State == api.Waiting {
		return nil
	}
	ids = []cluster.ManagementClusterID{p.ManagementClusterID}
	if p.Move != nil && p.Move.ReservedOn != "" {
		ids = append(ids, p.Move.ReservedOn)
	}
	slices.Sort(ids)
	return ids
}

// render returns the wire form of a placement's document, as services of the region read it.
func render(d store.Document) ([]byte, error) {
	p, err := placementOf(d)
	if err != nil {
		return nil, err
	}
	wire := api.Placement{
		ClusterID: string(p.ClusterID), State: p.State, ManagementCluster: string(p.ManagementCluster),
		Reserved:    p.reserved(),
		DecidedTime: p.DecidedTime, Decision: &p.Explanation,
	}
	if p.State != api.Waiting {
		wire.Size, wire.WantedSize = api.PlaneSize(p.size()), api.PlaneSize(p.WantedSize)
	}
	if p.State == api.Waiting {
		wire.Message, wire.Reason = p.Message, operatorReason(p.Demand, p.Explanation)
	}
	if p.Move != nil {
		wire.Move = p.Move.wire()
	}
	return json.Marshal(wire)
}

// forTenant returns a placement without inventory, for the cluster's owner.
func (p placement) forTenant() api.Placement {
	return api.Placement{ClusterID: string(p.ClusterID), State: p.State, Reserved: Amounts{}, DecidedTime: p.DecidedTime,
		Message: p.Message}
}
