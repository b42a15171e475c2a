package request

import (
	"encoding/json"
	"regexp"

	"atoll.dev/cluster"
	"atoll.dev/cluster/document"
)

// Clusters reads the bodies of requests for clusters.
type Clusters struct {
	Creator  string // ARN of the caller
	Releases cluster.Releases
}

// rosaMembers are the members of a cluster's spec that only ROSA's customers
// know.
var rosaMembers = cluster.Extension{
	Members: map[string]document.Rule{
		"aws":        document.Dictionary(50, awsKey, document.Text(2048)),
		"creatorARN": document.Text(2048),
	},
	Immutable: [][]string{{"creatorARN"}, {"aws"}},
}

func (c Clusters) rules() cluster.ClusterRules {
	return cluster.ClusterRules{Releases: c.Releases, Extension: rosaMembers}
}

// Create reads the body of a request to create a cluster. It returns the
// cluster, or the problems of the body, or an error when the body is no object.
func (c Clusters) Create(body []byte) (New, document.Problems, error) {
	var p document.Problems
	doc, err := readEnvelope(&p, body, nil, map[string]document.Rule{
		"kind": kindRule(kindCluster), "name": cluster.Name(cluster.MaxNameLength),
		"target_project_id": document.String(document.LabelValue), "spec": document.AnyObject,
	}, "name")
	if err != nil {
		return New{}, nil, err
	}
	spec := specOf(doc)
	if spec != nil {
		c.rules().Complete(&p, spec)
		if creator := spec["creatorARN"]; creator != nil && creator != c.Creator {
			p.Add("spec.creatorARN", "is set by the service, from the request's signature; leave it out")
		}
		spec["creatorARN"] = c.Creator
	}
	stored, p, err := encode(p, spec)
	if err != nil || len(p) > 0 {
		return New{}, p, err
	}
	created := New{Spec: stored}
	created.Name, _ = doc["name"].(string)
	created.Project, _ = doc["target_project_id"].(string)
	return created, nil, nil
}

// Change reads the body of a request to change a cluster. It returns the spec
// after the change, or the problems of the body, or an error when the body is no
// object.
func (c Clusters) Change(stored Stored, change Change, body []byte) (json.RawMessage, document.Problems, error) {
	var p document.Problems
	spec, restore, err := cluster.CutRestore(stored.Spec)
	if err != nil {
		return nil, nil, err
	}
	spec, rotations, err := cluster.CutRotations(spec)
	if err != nil {
		return nil, nil, err
	}
	stored.Spec = spec
	doc, err := readEnvelope(&p, body, stored.fixedMembers(kindCluster), stored.members(kindCluster, change), "spec")
	if err != nil {
		return nil, nil, err
	}
	before, after, err := stored.apply(change, doc["spec"], c.rules().RestoreOmitted)
	if err != nil || after == nil {
		return nil, p.Sorted(), err
	}
	c.rules().CheckChange(&p, before, after)
	changed, p, err := encode(p, after)
	if err != nil || len(p) > 0 {
		return nil, p, err
	}
	if changed, err = cluster.AddRestore(changed, restore); err != nil {
		return nil, nil, err
	}
	changed, err = cluster.AddRotations(changed, rotations)
	return changed, nil, err
}

var awsKeyPattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*$`)

func awsKey(key string) string {
	if len(key) > 128 || !awsKeyPattern.MatchString(key) {
		return "is not a name such as privateSubnetIds"
	}
	return ""
}
