package customer

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"atoll.dev/internal/strictyaml"
)

// clusterRequest is what `cluster create` requests: a cluster and its node pools, as the Platform API
// takes them. Specs are JSON objects.
type clusterRequest struct {
	name, project string
	spec          map[string]any
	pools         []poolRequest
}

// poolRequest is a node pool of a clusterRequest.
type poolRequest struct {
	name string
	spec map[string]any
}

// requestDocument is one document of a file for `cluster create -f`.
type requestDocument struct {
	Kind            string            `yaml:"kind"`
	Name            string            `yaml:"name"`
	TargetProjectID string            `yaml:"target_project_id"`
	Spec            strictyaml.Object `yaml:"spec"`
}

// parseRequest reads the file of a cluster: one document of the kind Cluster, and documents of the
// kind NodePool. A file with one document may omit the kind. parseOrder does not validate the
// specs; the region does.
func parseRequest(file string, data []byte) (o clusterRequest, err error) {
	documents, err := strictyaml.DecodeAll[requestDocument](file, data, strictyaml.Options{})
	if err != nil {
		return o, err
	}
	clusters := 0
	for i, d := range documents {
		switch d.Kind {
		case "Cluster", "":
			clusters++
			o.name, o.project, o.spec = d.Name, d.TargetProjectID, d.Spec
		case "NodePool":
			if d.TargetProjectID != "" {
				return o, fmt.Errorf("%s: document %d: target_project_id is a cluster's", file, i+1)
			}
			o.pools = append(o.pools, poolRequest{d.Name, d.Spec})
		default:
			return o, fmt.Errorf("%s: document %d: kind %q: use Cluster or NodePool", file, i+1, d.Kind)
		}
	}
	if clusters != 1 {
		return o, fmt.Errorf("%s: %d documents of the kind Cluster; there must be one", file, clusters)
	}
	return o, nil
}

// setMember sets a member of a spec by its path and creates the objects on the path that are missing.
func setMember(spec map[string]any, value any, path ...string) error {
	for i, p := range path[:len(path)-1] {
		next, ok := spec[p].(map[string]any)
		if !ok {
			if spec[p] != nil {
				return fmt.Errorf("%s is not an object", strings.Join(path[:i+1], "."))
			}
			next = map[string]any{}
			spec[p] = next
		}
		spec = next
	}
	spec[path[len(path)-1]] = value
	return nil
}

// poolFlag is the flag --node-pool, which is repeatable.
type poolFlag struct{ pools []poolRequest }

func (f *poolFlag) Type() string { return "name=N,replicas=R,..." }
func (f *poolFlag) String() string {
	var names []string
	for _, p := range f.pools {
		names = append(names, p.name)
	}
	return strings.Join(names, ",")
}

func (f *poolFlag) Set(text string) error {
	p, err := parsePool(text)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(f.pools, func(q poolRequest) bool { return q.name == p.name }) {
		return fmt.Errorf("%s is given twice; give it once", p.name)
	}
	f.pools = append(f.pools, p)
	return nil
}

// poolKeys are the keys that --node-pool accepts.
var poolKeys = []string{"name", "replicas", "instance-type", "provider", "label", "taint", "auto-repair",
	"display-name"}

// parsePool reads name=workers,replicas=2,instance-type=m6a.xlarge,provider=local,
// label=K=V,taint=K=V:EFFECT,auto-repair=true. The keys label and taint may be repeated.
func parsePool(text string) (poolRequest, error) {
	s := poolSettings{labels: map[string]string{}}
	var name string
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(part, "=")
		if !ok || value == "" || !slices.Contains(poolKeys, key) {
			return poolRequest{}, fmt.Errorf("%q: give KEY=VALUE with one of %s", part, strings.Join(poolKeys, ", "))
		}
		if seen[key] && key != "label" && key != "taint" {
			return poolRequest{}, fmt.Errorf("%s is given twice; give it once", key)
		}
		seen[key] = true
		var err error
		switch key {
		case "name":
			name = value
		case "replicas":
			n, parseErr := strconv.ParseInt(value, 10, 32)
			if parseErr != nil {
				err = fmt.Errorf("replicas=%s: give a number", value)
			}
			r := int32(n)
			s.replicas = &r
		case "instance-type":
			s.instanceType = value
		case "provider": // the region refuses a provider that it does not offer
			s.provider = value
		case "display-name":
			s.displayName = value
		case "label":
			k, v, ok := strings.Cut(value, "=")
			if !ok || k == "" {
				err = fmt.Errorf("label=%s: give label=KEY=VALUE", value)
			}
			s.labels[k] = v
		case "taint":
			err = s.addTaint(value)
		case "auto-repair":
			b, parseErr := strconv.ParseBool(value)
			if parseErr != nil {
				err = fmt.Errorf("auto-repair=%s: give true or false", value)
			}
			s.autoRepair = &b
		}
		if err != nil {
			return poolRequest{}, err
		}
	}
	if name == "" {
		return poolRequest{}, fmt.Errorf("%q has no name; give name=N", text)
	}
	return poolRequest{name, s.spec()}, nil
}

// poolSettings are the settings of a node pool that flags give.
type poolSettings struct {
	replicas                  *int32
	instanceType, displayName string
	provider                  string
	labels                    map[string]string
	taints                    []map[string]any
	autoRepair                *bool
}

// addTaint adds a taint, KEY[=VALUE]:EFFECT.
func (s *poolSettings) addTaint(text string) error {
	pair, effect, ok := strings.Cut(text, ":")
	key, value, _ := strings.Cut(pair, "=")
	if !ok || key == "" || effect == "" {
		return fmt.Errorf("taint %q: give KEY=VALUE:EFFECT", text)
	}
	t := map[string]any{"key": key, "effect": effect}
	if value != "" {
		t["value"] = value
	}
	s.taints = append(s.taints, t)
	return nil
}

// spec returns the spec of a node pool with the given settings.
func (s *poolSettings) spec() map[string]any {
	spec := map[string]any{}
	if s.displayName != "" {
		spec["displayName"] = s.displayName
	}
	if s.provider != "" {
		spec["provider"] = s.provider
	}
	if s.replicas != nil {
		spec["replicas"] = *s.replicas
	}
	if s.autoRepair != nil {
		spec["autoRepair"] = *s.autoRepair
	}
	if len(s.labels) > 0 {
		spec["labels"] = maps.Clone(s.labels)
	}
	if len(s.taints) > 0 {
		spec["taints"] = s.taints
	}
	if s.instanceType != "" {
		spec["nodePool"] = map[string]any{"platform": map[string]any{"type": "AWS", "aws": map[string]any{
			"instanceType": s.instanceType}}}
	}
	return spec
}
