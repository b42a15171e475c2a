package fleet

import (
	"encoding/json"
	"fmt"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/store"
)

// KindPlacement is the store's kind of placements: one for each cluster that
// was to be placed, until it is released.
const KindPlacement store.Kind = "Placement"

// Kinds are what fleet needs of a store besides CLM's entities.
func Kinds() []store.KindSpec {
	return []store.KindSpec{{Kind: KindPlacement, Render: render, History: true}}
}

// placementID is the id of a cluster's placement. It is not the cluster's: CLM
// finds resources of unknown kind by their ids.
func placementID(cluster string) string { return "placement-" + cluster }

// placementWanted is a placement's spec: whose it is and what it demands.
type placementWanted struct {
	ClusterID string `json:"cluster_id"`
	Demand    Demand `json:"demand"`
}

// placementMade is its status.
type placementMade struct {
	State api.PlacementState `json:"state"`
	// The management cluster's name and id, "" while it waits.
	ManagementCluster   string          `json:"management_cluster"`
	ManagementClusterID string          `json:"management_cluster_id"`
	DecidedTime         time.Time       `json:"decided_time"`
	Candidates          []api.Candidate `json:"candidates"`
}

// placement is a document of the kind, read.
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
	return p, err
}

func (p placement) into(d *store.Document) (err error) {
	if d.Spec, err = json.Marshal(p.placementWanted); err == nil {
		d.Status, err = json.Marshal(p.placementMade)
	}
	return err
}

// reserved is what it reserves on its management cluster.
func (p placement) reserved() Amounts {
	if p.State != api.Placed {
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
		ClusterID: p.ClusterID, State: p.State, ManagementCluster: p.ManagementCluster, Reserved: p.reserved(),
		DecidedTime: p.DecidedTime, Decision: api.Decision{Candidates: p.Candidates},
	}
	if p.State == api.Waiting {
		wire.Reason = why(p.Demand, p.Candidates)
	}
	return json.Marshal(wire)
}
