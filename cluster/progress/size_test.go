package progress

import (
	"encoding/json"
	"testing"

	"atoll.dev/api/clm"
	"atoll.dev/api/rotation"
	"atoll.dev/cluster"
)

// Size and rotations of a cluster are those of the hosted-cluster report; their texts name no management cluster for a
// caller who may not see the placement.
func TestSizeAndRotationsNameNoManagementCluster(t *testing.T) {
	of := clm.Resource{Statuses: []clm.AdapterStatus{{Adapter: string(cluster.AdapterHostedCluster), Data: json.RawMessage(
		`{"target_cluster":"mc-7","size":{"class":"small","message":"mc-7 is full"},` +
			`"rotations":{"encryption":{"id":"r1","message":"waits for mc-7"}}}`)}}}
	for visibility, name := range map[Visibility]string{ShowPlacement: "mc-7", HidePlacement: "the management cluster"} {
		s := OfCluster(of, visibility)
		if s.Size.Class != "small" || s.Size.Message != name+" is full" {
			t.Errorf("visibility %v: size %+v", visibility, s.Size)
		}
		if r := s.Rotations[rotation.Key("encryption")]; r.ID != "r1" || r.Message != "waits for "+name {
			t.Errorf("visibility %v: rotation %+v", visibility, r)
		}
	}
}
