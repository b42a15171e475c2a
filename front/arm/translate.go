package arm

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"atoll.dev/client/clmclient"
	"atoll.dev/cluster"
	"atoll.dev/cluster/document"
	"atoll.dev/cluster/progress"
)

// Labels of the resources that this front makes at the lifecycle manager.
const (
	labelFront         = "azure"
	labelFrontValue    = "hcp"
	labelDocument      = "azure-document"
	labelSubscription  = "azure-subscription"
	propertyResourceID = "azureResourceId"
)

func labelsOf(r resource) map[string]string {
	return map[string]string{labelFront: labelFrontValue, labelDocument: r.id, labelSubscription: r.scope}
}

// lookup returns the value at a path of properties, nil when there is none.
func lookup(properties map[string]any, path ...string) any {
	return document.Lookup(properties, path...)
}

func textAt(properties map[string]any, path ...string) string {
	text, _ := lookup(properties, path...).(string)
	return text
}

// integerAt returns the integer at a path of properties, 0 when there is none.
func integerAt(properties map[string]any, path ...string) int {
	number, _ := lookup(properties, path...).(json.Number)
	n, _ := strconv.Atoi(number.String()) // the table of fields has checked it
	return n
}

var tagName = regexp.MustCompile(`^[A-Za-z0-9_./:=+@-]{1,128}$`)

// policyTags returns the tags that the region can hold: policies depend on these. Azure's tags may have
// other characters.
func policyTags(tags map[string]any) map[string]string {
	kept := map[string]string{}
	for name, value := range tags {
		text, isText := value.(string)
		if isText && tagName.MatchString(name) && !strings.HasPrefix(strings.ToLower(name), "aws:") {
			kept[name] = text
		}
	}
	return kept
}

// clusterSpec returns the spec of the Cluster that a resource stands for.
func clusterSpec(r resource) map[string]any {
	properties := r.spec.Properties
	network := map[string]any{
		"networkType":    textAt(properties, "network", "networkType"),
		"serviceNetwork": []any{map[string]any{"cidr": textAt(properties, "network", "serviceCidr")}},
		"machineNetwork": []any{map[string]any{"cidr": textAt(properties, "network", "machineCidr")}},
	}
	pods := map[string]any{"cidr": textAt(properties, "network", "podCidr")}
	if prefix := lookup(properties, "network", "hostPrefix"); prefix != nil {
		pods["hostPrefix"] = prefix
	}
	network["clusterNetwork"] = []any{pods}
	hosted := map[string]any{"release": map[string]any{"image": r.spec.Image}, "networking": network}
	if mirrors, isList := properties["imageDigestMirrors"].([]any); isList {
		hosted["imageContentSources"] = mirrors
	}
	if textAt(properties, "cryptoRestrictions") == "FIPS" {
		hosted["fips"] = true
	}
	tags := map[string]any{}
	for name, value := range policyTags(r.spec.Tags) {
		tags[name] = value
	}
	return map[string]any{"displayName": r.spec.Name, "tags": tags,
		"properties": map[string]any{propertyResourceID: r.spec.Path}, "hostedCluster": hosted}
}

// poolSpec returns the spec of the NodePool that a resource stands for.
func poolSpec(r resource) map[string]any {
	properties := r.spec.Properties
	instance, _ := instanceTypeOf(textAt(properties, "platform", "vmSize"))
	aws := map[string]any{"instanceType": instance}
	if size := lookup(properties, "platform", "osDisk", "sizeGiB"); size != nil {
		aws["rootVolume"] = map[string]any{"size": size}
	}
	drain := "0s"
	if minutes, isNumber := properties["nodeDrainTimeoutMinutes"].(json.Number); isNumber {
		drain = minutes.String() + "m"
	}
	spec := map[string]any{"displayName": r.spec.Name, "nodePool": map[string]any{
		"replicas": properties["replicas"], "management": map[string]any{"autoRepair": properties["autoRepair"]},
		"platform": map[string]any{"type": "AWS", "aws": aws}, "nodeDrainTimeout": drain,
		"release": map[string]any{"image": r.spec.Image},
	}}
	if labels, isList := properties["labels"].([]any); isList {
		named := map[string]any{}
		for _, label := range labels {
			pair, _ := label.(map[string]any)
			value, _ := pair["value"].(string)
			named[textAt(pair, "key")] = value
		}
		spec["labels"] = named
	}
	if taints, isList := properties["taints"].([]any); isList {
		spec["taints"] = taints
	}
	return spec
}

// requestFields maps paths of the region's specs to the fields of this API, by the beginning of the path,
// longest first.
var requestFields = []struct{ path, target string }{
	{"spec.hostedCluster.networking.clusterNetwork[0].hostPrefix", "properties.network.hostPrefix"},
	{"spec.hostedCluster.networking.clusterNetwork", "properties.network.podCidr"},
	{"spec.hostedCluster.networking.serviceNetwork", "properties.network.serviceCidr"},
	{"spec.hostedCluster.networking.machineNetwork", "properties.network.machineCidr"},
	{"spec.hostedCluster.networking", "properties.network"},
	{"spec.hostedCluster.release", "properties.version.id"},
	{"spec.hostedCluster.imageContentSources", "properties.imageDigestMirrors"},
	{"spec.nodePool.release", "properties.version.id"},
	{"spec.nodePool.replicas", "properties.replicas"},
	{"spec.nodePool.platform", "properties.platform"},
	{"spec.labels", "properties.labels"},
	{"spec.taints", "properties.taints"},
	{"spec.tags", "tags"},
}

// requestFieldOf returns the field of this API from which a path of the region's spec is made.
func requestFieldOf(path string) string {
	for _, t := range requestFields {
		if strings.HasPrefix(path, t.path) {
			return t.target
		}
	}
	return "properties"
}

// checkSpec translates a resource into the spec of its Cluster or NodePool, and checks that by the rules
// that all fronts share. before is the stored resource, nil for a new one. It adds the mistakes to p, and
// returns the completed spec.
func checkSpec(p *problems, releases cluster.Releases, parent *resource, before *resource, r resource) map[string]any {
	var found document.Problems
	var spec map[string]any
	if r.kind == kindPool {
		rules := cluster.NodePoolRules{Releases: releases, Image: parent.spec.Image}
		spec = normalizeJSON(poolSpec(r))
		if before == nil {
			rules.Complete(&found, spec)
		} else {
			rules.CheckChange(&found, normalizeJSON(poolSpec(*before)), spec)
		}
	} else {
		rules := cluster.ClusterRules{Releases: releases}
		spec = normalizeJSON(clusterSpec(r))
		if before == nil {
			rules.Complete(&found, spec)
		} else {
			rules.CheckChange(&found, normalizeJSON(clusterSpec(*before)), spec)
		}
	}
	for _, problem := range found {
		p.add(requestFieldOf(problem.Field), "Invalid value: %s", problem.Message)
	}
	return spec
}

// normalizeJSON encodes and decodes a JSON object, so that its values have the types that they have after
// they are stored.
func normalizeJSON(object map[string]any) map[string]any {
	data, err := json.Marshal(object)
	if err != nil {
		panic("arm: encoding a spec: " + err.Error())
	}
	var copied map[string]any
	if err := decodeNumbers(data, &copied); err != nil {
		panic("arm: decoding a spec: " + err.Error())
	}
	return copied
}

// ownedMembers are the members of the region's specs that this front still writes after the creation. All
// other members keep the values that another API gives them.
var ownedMembers = [][]string{
	{"displayName"}, {"tags"}, {"properties", propertyResourceID}, {"hostedCluster", "release"},
	{"hostedCluster", "imageContentSources"}, {"labels"}, {"taints"}, {"nodePool", "replicas"},
	{"nodePool", "release"}, {"nodePool", "nodeDrainTimeout"},
}

// updateOwnedMembers returns the stored spec with the wanted values of ownedMembers.
func updateOwnedMembers(stored json.RawMessage, wanted map[string]any) (json.RawMessage, error) {
	var spec map[string]any
	if err := decodeNumbers(stored, &spec); err != nil {
		return nil, fmt.Errorf("reading a spec of the lifecycle manager: %w", err)
	}
	wanted = normalizeJSON(wanted)
	for _, path := range ownedMembers {
		last := len(path) - 1
		value := document.Lookup(wanted, path...)
		if value == nil && document.Lookup(spec, path...) == nil {
			continue
		}
		at := document.Ensure(spec, path[:last]...)
		if at[path[last]] = value; value == nil {
			delete(at, path[last])
		}
	}
	return json.Marshal(spec)
}

// minorOf returns the first two numbers of a version.
func minorOf(version string) string {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return version
	}
	return parts[0] + "." + parts[1]
}

// releaseOf returns the newest release of a minor version. offered are the other minor versions that the
// region has.
func releaseOf(releases cluster.Releases, minor string) (found cluster.Release, offered []string, ok bool) {
	var of cluster.Releases
	for _, r := range releases {
		if have := minorOf(r.Version); have == minor {
			of = append(of, r)
		} else {
			offered = append(offered, strconv.Quote(have))
		}
	}
	found, ok = of.Newest()
	return found, offered, ok
}

// observedStatus is the status of a Cluster or NodePool, as an operation needs it.
type observedStatus struct {
	phase    progress.Phase
	reason   string
	message  string
	seen     observation
	isDone   bool // the present generation is carried out
	isFailed bool
}

// readStatus reads the status of a Cluster or NodePool.
func readStatus(r clmclient.Resource, of resource) observedStatus {
	if of.kind == kindPool {
		s := progress.OfNodePool(r.Resource, progress.HidePlacement)
		return observedStatus{phase: s.Phase, reason: s.Reason, message: s.Message, seen: observation{Version: s.Version},
			isDone: s.Phase == progress.Ready, isFailed: s.Phase == progress.Failed}
	}
	s := progress.OfCluster(r.Resource, progress.HidePlacement)
	found := observedStatus{phase: s.Phase, reason: s.Reason, message: s.Message, seen: observation{Version: s.Version},
		isDone:   s.Phase == progress.Ready && s.ObservedGeneration >= int64(r.Generation),
		isFailed: s.Phase == progress.Failed}
	if s.Endpoint != nil {
		found.seen.URL = "https://" + s.Endpoint.Host
		if s.Endpoint.Port != 0 {
			found.seen.URL += ":" + strconv.Itoa(int(s.Endpoint.Port))
		}
	}
	_, found.seen.BaseDomain, _ = strings.Cut(s.ServerName, ".")
	return found
}

// percentOf returns the percentage that an operation shows in a phase.
func percentOf(phase progress.Phase) int {
	switch phase {
	case progress.WaitingForPlacement:
		return 10
	case progress.Provisioning:
		return 40
	case progress.Deleting:
		return 50
	}
	return 80
}
