package spec

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"atoll.dev/internal/instancetype"
)

// maxReplicas is how many nodes a pool can have.
const maxReplicas = 500

// NodePoolEnv is what a node pool is checked against: its cluster, too.
type NodePoolEnv struct {
	Env
	Release string // image of the cluster's release
}

var nodePoolRule = object(map[string]rule{
	"displayName": text(256),
	"labels":      dictionary(50, nodeLabelKey, matching(labelValue)),
	"taints": list(50, object(map[string]rule{
		"key": matching(taintKey), "value": matching(labelValue), "effect": oneOf("NoSchedule", "PreferNoSchedule",
			"NoExecute"),
	})),
	"nodePool": object(map[string]rule{
		"replicas":   integer(0, maxReplicas),
		"management": object(map[string]rule{"autoRepair": boolean, "upgradeType": oneOf("Replace", "InPlace")}),
		"platform": object(map[string]rule{"type": oneOf("AWS", "None"), "aws": object(map[string]rule{
			"instanceType": matching(instanceType),
			"rootVolume": object(map[string]rule{"size": integer(8, 16384), "type": text(16),
				"iops": integer(0, 256000), "encrypted": boolean, "encryptionKey": text(2048)}),
			"subnet":          passed("an object"),
			"instanceProfile": text(256),
			"securityGroups":  passed("a list"),
		})}),
		"release":          object(map[string]rule{"image": text(512)}),
		"nodeDrainTimeout": duration,
	}),
})

// lifted are the members that requests may have beside nodePool, in the shape
// of 1.6 of the contract, and where they belong.
var lifted = map[string][]string{
	"replicas": {"replicas"}, "management": {"management"}, "platform": {"platform"}, "release": {"release"},
	"nodeDrainTimeout": {"nodeDrainTimeout"}, "autoRepair": {"management", "autoRepair"},
}

// nodePoolImmutable are the parts of a spec that stay as they are.
var nodePoolImmutable = [][]string{{"nodePool", "platform"}, {"nodePool", "management", "upgradeType"}}

// nodePoolKept are the parts that a spec which replaces another may leave out.
var nodePoolKept = append([][]string{
	{"nodePool", "release"}, {"nodePool", "replicas"}, {"nodePool", "management", "autoRepair"},
	{"nodePool", "nodeDrainTimeout"},
}, nodePoolImmutable...)

// ReadNodePoolCluster is the id of the cluster that the body of a request to
// create a node pool names, "" if it names none.
func ReadNodePoolCluster(body []byte) string {
	v, err := decode(body)
	if err != nil {
		return ""
	}
	id, _ := at(v, "cluster_id").(string)
	return id
}

// NewNodePool reads the body of a request to create a node pool.
func (e NodePoolEnv) NewNodePool(body []byte) (New, Problems, error) {
	var p Problems
	doc, err := envelope(body, &p, nil, map[string]rule{
		"kind": kindRule("NodePool"), "cluster_id": matching(clusterID), "name": name(maxNodePoolName),
		"spec": passed("an object"),
	}, "name", "cluster_id")
	if err != nil {
		return New{}, nil, err
	}
	made := New{}
	made.Name, _ = doc["name"].(string)
	made.Cluster, _ = doc["cluster_id"].(string)
	spec, ok := doc["spec"].(map[string]any)
	if doc["spec"] == nil {
		spec, ok = map[string]any{}, true
	}
	if ok {
		withoutNulls(spec)
		lift(&p, spec)
		e.complete(spec)
		e.check(&p, nil, spec)
	}
	return finished(made, spec, p)
}

// clusterID leaves it to the region to say whether there is such a cluster.
func clusterID(s string) string {
	if s == "" || len(s) > 64 {
		return quote(s) + " is not the id of a cluster"
	}
	return ""
}

// complete fills in what a new spec leaves out.
func (e NodePoolEnv) complete(spec map[string]any) {
	pool := within(spec, "nodePool")
	fill(pool, "replicas", json.Number("2"))
	fill(pool, "nodeDrainTimeout", "0s")
	management, platform := within(pool, "management"), within(pool, "platform")
	fill(management, "autoRepair", true)
	fill(management, "upgradeType", "Replace")
	fill(platform, "type", "AWS")
	fill(within(platform, "aws"), "instanceType", instancetype.Default)
	if e.Release != "" {
		fill(within(pool, "release"), "image", e.Release)
	}
}

// check checks a whole spec; have is what it was before, nil for a new one.
func (e NodePoolEnv) check(p *Problems, have, spec map[string]any) {
	nodePoolRule(p, "spec", spec)
	const field = "spec.nodePool.release.image"
	was, _ := at(have, "nodePool", "release", "image").(string)
	image, ok := at(spec, "nodePool", "release", "image").(string)
	if ok && image != was && e.Releases.known(p, field, image) {
		before, wanted, plane := e.Releases.versionOf(was), e.Releases.versionOf(image), e.Releases.versionOf(e.Release)
		switch {
		case wanted == nil || plane == nil:
		case before != nil && wanted.LessThan(before):
			p.add(field, "is %s, and the nodes run %s; a release does not go back", wanted, before)
		case plane.LessThan(wanted):
			p.add(field, "is %s, and the cluster's control plane runs %s; upgrade that first", wanted, plane)
		case wanted.Minor()+3 < plane.Minor():
			p.add(field, "is %s, which is too old for the cluster's control plane of %s", wanted, plane)
		}
	}
	taints, _ := spec["taints"].([]any)
	seen := map[[2]any]bool{}
	for i, taint := range taints {
		if key := [2]any{at(taint, "key"), at(taint, "effect")}; key[0] == nil || key[1] == nil {
			p.add(fmt.Sprintf("spec.taints[%d]", i), "needs a key and an effect")
		} else if hashable(key) && seen[key] {
			p.add(fmt.Sprintf("spec.taints[%d]", i), "is there twice: a key and its effect must be unique")
		} else if hashable(key) {
			seen[key] = true
		}
	}
}

func hashable(key [2]any) bool {
	_, a := key[0].(string)
	_, b := key[1].(string)
	return a && b
}

// PatchNodePool is the spec of a node pool to which the body of a request, a
// merge patch, was applied.
func (e NodePoolEnv) PatchNodePool(have Known, body []byte) (json.RawMessage, Problems, error) {
	return e.change(have, body, false)
}

// ReplaceNodePool is the spec of a node pool that the body of a request
// replaces.
func (e NodePoolEnv) ReplaceNodePool(have Known, body []byte) (json.RawMessage, Problems, error) {
	return e.change(have, body, true)
}

func (e NodePoolEnv) change(have Known, body []byte, replace bool) (json.RawMessage, Problems, error) {
	var p Problems
	doc, err := envelope(body, &p, have.fixed("NodePool"), have.members("NodePool", replace), "spec")
	if err != nil {
		return nil, nil, err
	}
	if spec, ok := doc["spec"].(map[string]any); ok {
		lift(&p, spec)
	}
	before, after, err := have.change(doc["spec"], replace, nodePoolKept)
	if err != nil || after == nil {
		return nil, p.sorted(), err
	}
	e.check(&p, before, after)
	for _, path := range nodePoolImmutable {
		unchanged(&p, "spec."+strings.Join(path, "."), at(before, path...), at(after, path...))
	}
	for _, path := range [][]string{{"nodePool", "replicas"}, {"nodePool", "release", "image"}} {
		if at(before, path...) != nil && at(after, path...) == nil {
			p.add("spec."+strings.Join(path, "."), "cannot be removed")
		}
	}
	changed, problems, err := finished(New{}, after, p)
	return changed.Spec, problems, err
}

// lift moves members to where they belong, nulls of a patch too. What is at
// both places must be the same.
func lift(p *Problems, spec map[string]any) {
	if _, ok := spec["nodePool"].(map[string]any); !ok && spec["nodePool"] != nil {
		return // refused by the rule
	}
	// management before autoRepair, which goes into it.
	for _, name := range []string{"replicas", "management", "platform", "release", "nodeDrainTimeout", "autoRepair"} {
		value, given := spec[name]
		if !given {
			continue
		}
		delete(spec, name)
		path := lifted[name]
		last := len(path) - 1
		place(p, "spec."+name, within(within(spec, "nodePool"), path[:last]...), path[last], value)
	}
}

// place puts a value into an object where there may be one already.
func place(p *Problems, path string, into map[string]any, name string, value any) {
	have, there := into[name]
	h, hasMembers := have.(map[string]any)
	v, members := value.(map[string]any)
	switch {
	case !there:
		into[name] = value
	case hasMembers && members:
		for name, value := range v {
			place(p, member(path, quoteName(name)), h, name, value)
		}
	case !reflect.DeepEqual(have, value):
		p.add(path, "is under spec.nodePool as well, with another value; give it once")
	}
}

func instanceType(s string) string {
	if _, ok := instancetype.Lookup(s); ok {
		return ""
	}
	family, _, _ := strings.Cut(s, ".")
	var near []string
	for _, known := range instancetype.Names() {
		if strings.HasPrefix(known, family+".") && family != "" {
			near = append(near, known)
		}
	}
	if len(near) == 0 {
		near = []string{"m6a.xlarge", "c6i.2xlarge", "r6i.large", "and others of these and their neighbouring families"}
	}
	return quote(s) + " is not a known instance type; possible: " + strings.Join(near, ", ")
}

// reservedDomains are of labels that the region, or Kubernetes itself, sets.
var reservedDomains = []string{"kubernetes.io", "k8s.io", "atoll.dev", "hypershift.openshift.io"}

func nodeLabelKey(key string) string {
	domain, _, qualified := strings.Cut(key, "/")
	if qualified && domain != "node-restriction.kubernetes.io" {
		for _, reserved := range reservedDomains {
			if domain == reserved || strings.HasSuffix(domain, "."+reserved) {
				return "is reserved: labels of " + reserved + " are set by the service"
			}
		}
	}
	return labelKey(key)
}

func taintKey(key string) string {
	if wrong := labelKey(key); wrong != "" {
		return quote(key) + " " + strings.ReplaceAll(wrong, "label key", "taint key")
	}
	return ""
}
