package cluster

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"

	"atoll.dev/cluster/document"
)

// Networks of a cluster that names none; they are HyperShift's.
const (
	DefaultClusterNetwork = "10.132.0.0/14" // of pods
	DefaultServiceNetwork = "172.31.0.0/16"
	DefaultMachineNetwork = "10.0.0.0/16"
)

// NetworkKind is one of the three kinds of a cluster's networks, by the name of
// its member in HostedClusterSpec.Networking.
type NetworkKind string

const (
	ClusterNetwork NetworkKind = "clusterNetwork"
	ServiceNetwork NetworkKind = "serviceNetwork"
	MachineNetwork NetworkKind = "machineNetwork"
)

// limits bound the networks of one kind.
type limits struct {
	kind              NetworkKind
	fallback          string // the network of a cluster that names none
	shortest, longest int    // prefix lengths
	maxItems          int
}

// networkLimits has the kinds in the order in which they are checked. A service
// network has at most 20 bits for addresses, as kube-apiserver demands; a
// cluster network needs room for the pods of several nodes.
var networkLimits = []limits{
	{ClusterNetwork, DefaultClusterNetwork, 8, 20, 1},
	{ServiceNetwork, DefaultServiceNetwork, 12, 24, 1},
	{MachineNetwork, DefaultMachineNetwork, 8, 25, 8},
}

// reservedNetworks are networks that no cluster can have.
var reservedNetworks = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("240.0.0.0/4"),
}

// Network is one network of a cluster.
type Network struct {
	Kind       NetworkKind
	Index      int // place among the networks of its kind
	CIDR       string
	HostPrefix int  // prefix length of each node's share; 0: not given
	IsDefault  bool // the customer did not name it
}

// CheckNetworks returns the problems of a cluster's networks, of each network and of
// each pair. The fields of the problems are below path, such as
// PATH.machineNetwork[1].cidr.
//
// A network is IPv4 (decision 067), has no bits beyond its prefix, is within the
// limits of its kind, overlaps no reserved network and no other network of the
// cluster. A host prefix belongs to cluster networks only and leaves room for a
// second node.
func CheckNetworks(path string, networks []Network) document.Problems {
	var p document.Problems
	type accepted struct {
		field  string
		prefix netip.Prefix
	}
	var all []accepted
	for _, limit := range networkLimits {
		items := 0
		for _, n := range networks {
			if n.Kind != limit.kind {
				continue
			}
			items++
			item := fmt.Sprintf("%s[%d]", document.JoinPath(path, string(n.Kind)), n.Index)
			prefix, wrong := limit.parse(n.CIDR)
			if wrong != "" {
				p.Add(item+".cidr", "%s", wrong)
				continue
			}
			n.checkHostPrefix(&p, item+".hostPrefix", prefix)
			for _, other := range all {
				switch {
				case !prefix.Overlaps(other.prefix):
				case n.IsDefault:
					p.Add(item+".cidr", "%s, which is the default, overlaps with %s of %s; name another one",
						prefix, other.prefix, other.field)
				default:
					p.Add(item+".cidr", "%s overlaps with %s of %s", prefix, other.prefix, other.field)
				}
			}
			all = append(all, accepted{item + ".cidr", prefix})
		}
		if items > limit.maxItems {
			p.Add(document.JoinPath(path, string(limit.kind)), "has %d items; %d are possible", items, limit.maxItems)
		}
	}
	return p.Sorted()
}

// parse reads a network and returns its problem, or "". It compares it with no other network.
func (l limits) parse(cidr string) (prefix netip.Prefix, wrong string) {
	prefix, err := netip.ParsePrefix(cidr)
	switch {
	case err != nil:
		return prefix, fmt.Sprintf("%s is not a network such as %s", document.Quote(cidr), l.fallback)
	case !prefix.Addr().Is4():
		return prefix, fmt.Sprintf("%s is not an IPv4 network", document.Quote(cidr))
	case prefix != prefix.Masked():
		return prefix, fmt.Sprintf("%s has bits beyond its prefix; did you mean %s?", cidr, prefix.Masked())
	case prefix.Bits() > l.longest:
		return prefix, fmt.Sprintf("%s is too small; it can be from /%d to /%d", cidr, l.shortest, l.longest)
	case prefix.Bits() < l.shortest:
		return prefix, fmt.Sprintf("%s is too large; it can be from /%d to /%d", cidr, l.shortest, l.longest)
	}
	for _, r := range reservedNetworks {
		if prefix.Overlaps(r) {
			return prefix, fmt.Sprintf("%s overlaps with %s, which is reserved", cidr, r)
		}
	}
	return prefix, ""
}

func (n Network) checkHostPrefix(p *document.Problems, field string, prefix netip.Prefix) {
	switch {
	case n.HostPrefix == 0:
	case n.Kind != ClusterNetwork:
		p.Add(field, "is of cluster networks only")
	case n.HostPrefix <= prefix.Bits():
		p.Add(field, "%d leaves no room for a second node in %s", n.HostPrefix, prefix)
	}
}

var networkRule = document.Object(map[string]document.Rule{
	"cidr": document.Text(64), "hostPrefix": document.Integer(9, 28),
})

// completeNetworks fills in the networks that a new cluster's networking leaves
// out, and checks all.
func completeNetworks(p *document.Problems, path string, networking map[string]any) {
	var networks []Network
	for _, limit := range networkLimits {
		kind := string(limit.kind)
		isDefault := networking[kind] == nil
		document.SetDefault(networking, kind, []any{map[string]any{"cidr": limit.fallback}})
		items, isList := networking[kind].([]any)
		if isList && len(items) == 0 {
			p.Add(document.JoinPath(path, kind), "is empty; leave it out for %s", limit.fallback)
		}
		for i, item := range items {
			n := Network{Kind: limit.kind, Index: i, IsDefault: isDefault}
			switch cidr := document.Lookup(item, "cidr").(type) {
			case string:
				n.CIDR = cidr
			case nil:
				p.Add(fmt.Sprintf("%s[%d].cidr", document.JoinPath(path, kind), i), "is missing")
				continue
			default:
				continue // the rule of the spec reports it
			}
			hostPrefix, _ := document.Lookup(item, "hostPrefix").(json.Number)
			n.HostPrefix, _ = strconv.Atoi(hostPrefix.String())
			networks = append(networks, n)
		}
	}
	*p = append(*p, CheckNetworks(path, networks)...)
}
