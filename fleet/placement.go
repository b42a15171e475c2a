package fleet

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

// KindPlacement is the store's kind of placements: one for each cluster that asked for a place, until it is
// released.
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

// placementWanted is a placement's spec: its cluster and demand.
type placementWanted struct {
	ClusterID cluster.ID `json:"cluster_id"`
	Demand    Demand     `json:"demand"`
}

// placementMade is its status.
type placementMade struct {
	State api.PlacementState `json:"state"`
	// The management cluster's name and id, "" while it waits.
	ManagementCluster   cluster.ManagementCluster   `json:"management_cluster"`
	ManagementClusterID cluster.ManagementClusterID `json:"management_cluster_id"`
	DecidedTime         time.Time                   `json:"decided_time"`
	Message             string                      `json:"message,omitempty"` // why it waits, in words for its owner
	// When fleet found that the cluster does not exist any more, and who removed it; nil: it exists.
	OrphanedTime *time.Time `json:"orphaned_time,omitempty"`
	RemovedBy    string     `json:"removed_by,omitempty"`
	// Embedded, because documents of older versions have its candidates at this level.
	Explanation
}

// placement is a decoded placement document.
type placement struct {
	placementWanted
	placementMade
}

func placementOf(d store.Document) (p placement, err error) {
	if err = json.Unmarshal(d.Spec, &p.placementWanted); err == nil {
		err = json.Unmarshal(d.Status, &p.placementMade)
	}
	if err != nil {
		err = fmt.Errorf("reading %s: %w", d.ID, err)
	}
	if p.Objections == nil { // a decision of an older version
		p.Considered, p.Objections = len(p.Candidates), []api.Objection{}
	}
	return p, err
}

// reserving has the members of a placement that the board keeps.
type reserving struct {
	placementWanted
	ManagementClusterID cluster.ManagementClusterID `json:"management_cluster_id"`
	OrphanedTime        *time.Time                  `json:"orphaned_time"`
}

// reservationOf decodes a placement without its explanation, for the board.
func reservationOf(d store.Document) (r reserving, err error) {
	if err = json.Unmarshal(d.Spec, &r.placementWanted); err == nil {
		err = json.Unmarshal(d.Status, &r)
	}
	if err != nil {
		err = fmt.Errorf("reading %s: %w", d.ID, err)
	}
	return r, err
}

func (p placement) into(d *store.Document) (err error) {
	if d.Spec, err = json.Marshal(p.placementWanted); err == nil {
		d.Status, err = json.Marshal(p.placementMade)
	}
	return err
}

// reserved returns the amounts that it reserves on its management cluster.
func (p placement) reserved() Amounts {
	if p.State == api.Waiting {
		return Amounts{}
	}
	return p.Demand.Amounts
}

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
	if p.State == api.Waiting {
		wire.Message, wire.Reason = p.Message, why(p.Demand, p.Explanation)
	}
	return json.Marshal(wire)
}

// forTenant returns a placement without inventory, for the cluster's owner.
func (p placement) forTenant() api.Placement {
	return api.Placement{ClusterID: string(p.ClusterID), State: p.State, Reserved: Amounts{}, DecidedTime: p.DecidedTime,
		Message: p.Message}
}
