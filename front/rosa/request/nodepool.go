package request

import (
	"encoding/json"

	"atoll.dev/cluster"
	"atoll.dev/cluster/document"
	"atoll.dev/internal/jsonvalue"
)

// NodePools reads the bodies of requests for the node pools of one cluster.
type NodePools struct {
	Releases  cluster.Releases
	Image     string                 // of the cluster's release
	Providers []cluster.NodeProvider // as cluster.NodePoolRules
}

func (n NodePools) rules() cluster.NodePoolRules {
	return cluster.NodePoolRules{Releases: n.Releases, Image: n.Image, Providers: n.Providers}
}

// ReadClusterID returns the id of the cluster that the body of a request to
// create a node pool names; "" when it names none.
func ReadClusterID(body []byte) cluster.ID {
	v, err := document.Decode(body)
	if err != nil {
		return ""
	}
	id, _ := document.Lookup(v, "cluster_id").(string)
	return cluster.ID(id)
}

// Create reads the body of a request to create a node pool. It returns the node
// pool, or the problems of the body, or an error when the body is no object.
func (n NodePools) Create(body []byte) (New, document.Problems, error) {
	var p document.Problems
	doc, err := readEnvelope(&p, body, nil, map[string]document.Rule{
		"kind": kindRule(kindNodePool), "cluster_id": document.String(clusterID),
		"name": cluster.Name(cluster.MaxNodePoolNameLength), "spec": document.AnyObject,
	}, "name", "cluster_id")
	if err != nil {
		return New{}, nil, err
	}
	spec := specOf(doc)
	if spec != nil {
		document.DropNulls(spec)
		lowerMembers(&p, spec)
		n.rules().Complete(&p, spec)
	}
	stored, p, err := encode(p, spec)
	if err != nil || len(p) > 0 {
		return New{}, p, err
	}
	created := New{Spec: stored, Cluster: ReadClusterID(body)}
	created.Name, _ = doc["name"].(string)
	return created, nil, nil
}

// clusterID returns the mistake in the form of an id, "" for none. It does not
// check that the cluster exists; the lifecycle manager does.
func clusterID(s string) string {
	if s == "" || len(s) > 64 {
		return document.Quote(s) + " is not the id of a cluster"
	}
	return ""
}

// Change reads the body of a request to change a node pool. It returns the spec
// after the change, or the problems of the body, or an error when the body is no
// object.
func (n NodePools) Change(stored Stored, change Change, body []byte) (json.RawMessage, document.Problems, error) {
	var p document.Problems
	doc, err := readEnvelope(&p, body, stored.fixedMembers(kindNodePool), stored.members(kindNodePool, change), "spec")
	if err != nil {
		return nil, nil, err
	}
	if spec, ok := doc["spec"].(map[string]any); ok {
		lowerMembers(&p, spec)
	}
	before, after, err := stored.apply(change, doc["spec"], n.rules().RestoreOmitted)
	if err != nil || after == nil {
		return nil, p.Sorted(), err
	}
	n.rules().CheckChange(&p, before, after)
	return encode(p, after)
}

// upperMembers are the members that a body may have beside nodePool, and their
// paths below nodePool. management comes before autoRepair, which goes into it.
var upperMembers = []struct {
	name string
	path []string
}{
	{"replicas", []string{"replicas"}},
	{"management", []string{"management"}},
	{"platform", []string{"platform"}},
	{"release", []string{"release"}},
	{"nodeDrainTimeout", []string{"nodeDrainTimeout"}},
	{"autoRepair", []string{"management", "autoRepair"}},
}

// lowerMembers moves members that are beside nodePool into nodePool, also the
// nulls of a patch. A member that is at both places must have one value.
func lowerMembers(p *document.Problems, spec map[string]any) {
	if _, ok := spec["nodePool"].(map[string]any); !ok && spec["nodePool"] != nil {
		return // the rule of the spec reports it
	}
	for _, m := range upperMembers {
		value, given := spec[m.name]
		if !given {
			continue
		}
		delete(spec, m.name)
		last := len(m.path) - 1
		into := document.Ensure(document.Ensure(spec, "nodePool"), m.path[:last]...)
		insert(p, "spec."+m.name, into, m.path[last], value)
	}
}

// insert sets a member, or joins objects when the member is an object already.
func insert(p *document.Problems, path string, into map[string]any, name string, value any) {
	have, exists := into[name]
	haveMembers, haveIsObject := have.(map[string]any)
	members, isObject := value.(map[string]any)
	switch {
	case !exists:
		into[name] = value
	case haveIsObject && isObject:
		for name, value := range members {
			insert(p, document.JoinPath(path, document.QuoteName(name)), haveMembers, name, value)
		}
	case !jsonvalue.Equal(have, value):
		p.Add(path, "is under spec.nodePool as well, with another value; give it once")
	}
}
