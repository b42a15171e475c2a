package hosting

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
)

// refusal is why hosting does not follow a part of a spec, for a condition.
type refusal struct{ Reason, Message string }

// Reasons of conditions besides HyperShift's own.
const (
	reasonAsExpected          = "AsExpected"
	reasonInvalid             = "InvalidConfiguration"
	reasonVersionNotAvailable = "version-not-available"
	reasonPaused              = "ReconciliationPaused"
	reasonInvalidPause        = "InvalidPausedUntilValue"
)

// releaseRepository is the image whose tags are versions of Kubernetes.
const releaseRepository = "atoll.dev/release:"

// Releases are the versions that the runtime can run.
type Releases []controlplane.Version

// pick returns the version that an image names, or why it cannot follow current,
// whose data the plane has ("" for a new plane).
func (r Releases) pick(image string, current controlplane.Version) (controlplane.Version, *refusal) {
	tag, ok := strings.CutPrefix(image, releaseRepository)
	version := controlplane.Version(tag)
	if !ok || !slices.Contains(r, version) {
		return "", &refusal{reasonVersionNotAvailable,
			fmt.Sprintf("the release %q is not in this management cluster's catalogue", image)}
	}
	if current == "" {
		return version, nil
	}
	from, fromOK := minor(current)
	to, toOK := minor(version)
	switch {
	case !fromOK || !toOK:
		return version, nil
	case to < from:
		return "", &refusal{reasonVersionNotAvailable,
			fmt.Sprintf("going back from %s to %s is not possible: etcd's data may be of the later version", current,
				version)}
	case to > from+1:
		return "", &refusal{reasonVersionNotAvailable, fmt.Sprintf("from %s to %s leaves out a minor version", current,
			version)}
	}
	return version, nil
}

// minor is the minor part of a version of Kubernetes 1.
func minor(version controlplane.Version) (int, bool) {
	parts := strings.SplitN(string(version), ".", 3)
	if len(parts) != 3 || parts[0] != "1" {
		return 0, false
	}
	n, err := strconv.Atoi(parts[1])
	return n, err == nil
}

// problems lists what is wrong with a spec, each with its field. fixed is the
// service network of the plane's first start; "" before it.
func problems(spec hypershift.HostedClusterSpec, fixed string) []string {
	var found []string
	complain := func(field, format string, args ...any) {
		found = append(found, field+": "+fmt.Sprintf(format, args...))
	}
	type network struct {
		field  string
		prefix netip.Prefix
	}
	var networks []network
	read := func(field, cidr string) netip.Prefix {
		p, err := netip.ParsePrefix(cidr)
		switch {
		case err != nil:
			complain(field, "%q is not a network, as 10.0.0.0/16", cidr)
			return netip.Prefix{}
		case p != p.Masked():
			complain(field, "%s has bits beyond its prefix; did you mean %s?", cidr, p.Masked())
			return netip.Prefix{}
		}
		for _, other := range networks {
			if other.prefix.Overlaps(p) {
				complain(field, "%s overlaps %s, which is %s", p, other.prefix, other.field)
			}
		}
		networks = append(networks, network{field, p})
		return p
	}
	n := spec.Networking
	for i, e := range n.ClusterNetwork {
		read(fmt.Sprintf("spec.networking.clusterNetwork[%d].cidr", i), e.CIDR)
	}
	for i, e := range n.ServiceNetwork {
		field := fmt.Sprintf("spec.networking.serviceNetwork[%d].cidr", i)
		if p := read(field, e.CIDR); p.IsValid() {
			// Kubernetes keeps a bit for each address: 20 bits at most, and the
			// first address is its own.
			if size := p.Addr().BitLen() - p.Bits(); size > 20 || size < 2 {
				complain(field, "%s leaves %d bits for addresses; 2 to 20 are possible", p, size)
			}
		}
	}
	for i, e := range n.MachineNetwork {
		read(fmt.Sprintf("spec.networking.machineNetwork[%d].cidr", i), e.CIDR)
	}
	if cidr := serviceCIDR(spec); fixed != "" && cidr != "" && cidr != fixed && len(found) == 0 {
		complain("spec.networking.serviceNetwork", "the plane was made with %s, which cannot change", fixed)
	}
	if len(n.ServiceNetwork) > 1 {
		complain("spec.networking.serviceNetwork", "one network is possible, not %d", len(n.ServiceNetwork))
	}
	if name := spec.KubeAPIServerDNSName; name != "" {
		for _, msg := range validation.IsDNS1123Subdomain(name) {
			complain("spec.kubeAPIServerDNSName", "%q: %s", name, msg)
		}
	}
	return found
}

func serviceCIDR(spec hypershift.HostedClusterSpec) string {
	if len(spec.Networking.ServiceNetwork) == 0 {
		return ""
	}
	return spec.Networking.ServiceNetwork[0].CIDR
}

// serverName is the name by which a plane is found behind the router.
func serverName(hc *hypershift.HostedCluster) string {
	if hc.Spec.KubeAPIServerDNSName != "" {
		return hc.Spec.KubeAPIServerDNSName
	}
	return apihosting.ServerName(hc.Name)
}

// paused reads spec.pausedUntil: whether nothing may be changed at now, for
// how long (0: until somebody says otherwise), and whether it can be read.
func paused(until *string, now time.Time) (active bool, left time.Duration, err error) {
	if until == nil || *until == "" {
		return false, 0, nil
	}
	if b, err := strconv.ParseBool(*until); err == nil {
		return b, 0, nil
	}
	t, err := time.Parse(time.RFC3339, *until)
	if err != nil {
		return false, 0, fmt.Errorf("%q is neither true nor false nor a time of RFC 3339", *until)
	}
	return now.Before(t), max(0, t.Sub(now)), nil
}
