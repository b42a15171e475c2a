package spec

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
)

// networkKind is one of the three kinds of networks of a cluster. The fewest
// and most bits of a prefix are what kube-apiserver and the nodes can do with.
type networkKind struct {
	name        string
	fallback    string // the network of a cluster that names none
	least, most int    // bits
}

var networkKinds = []networkKind{
	{"clusterNetwork", "10.132.0.0/14", 8, 20},
	{"serviceNetwork", "172.31.0.0/16", 12, 24},
	{"machineNetwork", "10.0.0.0/16", 8, 25},
}

// reserved are networks that no cluster can have.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("240.0.0.0/4"),
}

var networkRule = object(map[string]rule{
	"cidr": text(64), "hostPrefix": integer(9, 28),
})

// networks checks a cluster's networks, one by one and against each other.
// given says which kinds the customer named; of the others the default is
// there.
func networks(p *Problems, path string, networking any, given map[string]bool) {
	type placed struct {
		path   string
		prefix netip.Prefix
	}
	var all []placed
	for _, kind := range networkKinds {
		items, isList := at(networking, kind.name).([]any)
		field := member(path, kind.name)
		if isList && len(items) == 0 {
			p.add(field, "is empty; leave it out for %s", kind.fallback)
		}
		for i, item := range items {
			field := fmt.Sprintf("%s[%d].cidr", field, i)
			cidr, isText := at(item, "cidr").(string)
			if !isText {
				if at(item, "cidr") == nil {
					p.add(field, "is missing")
				}
				continue
			}
			prefix, wrong := kind.parse(cidr)
			if wrong != "" {
				p.add(field, "%s", wrong)
				continue
			}
			kind.hosts(p, fmt.Sprintf("%s[%d].hostPrefix", member(path, kind.name), i), prefix, at(item, "hostPrefix"))
			for _, other := range all {
				if !prefix.Overlaps(other.prefix) {
					continue
				}
				if given[kind.name] {
					p.add(field, "%s overlaps with %s of %s", prefix, other.prefix, other.path)
				} else {
					p.add(field, "%s, which is the default, overlaps with %s of %s; name another one", prefix,
						other.prefix, other.path)
				}
			}
			all = append(all, placed{field, prefix})
		}
	}
}

// parse reads a network and says what is wrong with it alone.
func (k networkKind) parse(cidr string) (prefix netip.Prefix, wrong string) {
	prefix, err := netip.ParsePrefix(cidr)
	switch {
	case err != nil:
		return prefix, fmt.Sprintf("%s is not a network such as %s", quote(cidr), k.fallback)
	case !prefix.Addr().Is4():
		return prefix, fmt.Sprintf("%s is not an IPv4 network", quote(cidr))
	case prefix != prefix.Masked():
		return prefix, fmt.Sprintf("%s has bits beyond its prefix; did you mean %s?", cidr, prefix.Masked())
	case prefix.Bits() > k.most:
		return prefix, fmt.Sprintf("%s is too small; it can be from /%d to /%d", cidr, k.least, k.most)
	case prefix.Bits() < k.least:
		return prefix, fmt.Sprintf("%s is too large; it can be from /%d to /%d", cidr, k.least, k.most)
	}
	for _, r := range reserved {
		if prefix.Overlaps(r) {
			return prefix, fmt.Sprintf("%s overlaps with %s, which is reserved", cidr, r)
		}
	}
	return prefix, ""
}

// hosts checks the prefix that each node gets of a cluster network.
func (k networkKind) hosts(p *Problems, path string, prefix netip.Prefix, hostPrefix any) {
	if hostPrefix == nil {
		return
	}
	if k.name != "clusterNetwork" {
		p.add(path, "is of cluster networks only")
		return
	}
	n, _ := hostPrefix.(json.Number)
	bits, err := strconv.Atoi(n.String())
	if err == nil && bits <= prefix.Bits() {
		p.add(path, "%d leaves no room for a second node in %s", bits, prefix)
	}
}
