package hosting

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
)

// refusal is the reason of a condition why hosting does not follow a part of a spec.
type refusal struct{ Reason, Message string }

// Reasons of conditions.
const (
	reasonAsExpected          = string(cluster.ReasonAsExpected)
	reasonInvalid             = string(cluster.ReasonInvalidConfiguration)
	reasonVersionNotAvailable = string(cluster.ReasonVersionNotAvailable)
	reasonPaused              = "ReconciliationPaused"
	reasonInvalidPause        = "InvalidPausedUntilValue"
)

// Releases are the versions that the runtime can run.
type Releases []controlplane.Version

// pick returns the version that an image names, or why a plane may not go to it
// from current, the version that wrote the plane's data ("" for a new plane). The
// rules are cluster.CheckUpgrade.
func (r Releases) pick(image string, current controlplane.Version) (controlplane.Version, *refusal) {
	text, ok := cluster.ReleaseVersion(image)
	version := controlplane.Version(text)
	if !ok || !slices.Contains(r, version) {
		return "", &refusal{
			reasonVersionNotAvailable, fmt.Sprintf("the release %q is not in this management cluster's catalogue", image),
		}
	}
	if err := cluster.CheckUpgrade(string(current), text); err != nil {
		return "", &refusal{reasonVersionNotAvailable, fmt.Sprintf("the release %q %s", image, err)}
	}
	return version, nil
}

// problems lists the problems of a spec, each with its field. fixed is the service
// network of the plane's first start; "" before it. cluster.CheckNetworks has the
// rules of networks.
func problems(spec hypershift.HostedClusterSpec, fixed string) []string {
	var found []string
	for _, p := range cluster.CheckNetworks("spec.networking", networksOf(spec)) {
		found = append(found, p.Field+": "+p.Message)
	}
	if cidr := serviceCIDR(spec); fixed != "" && cidr != "" && cidr != fixed && len(found) == 0 {
		found = append(found,
			fmt.Sprintf("spec.networking.serviceNetwork: the plane was made with %s, which cannot change", fixed))
	}
	if name := spec.KubeAPIServerDNSName; name != "" {
		for _, message := range validation.IsDNS1123Subdomain(name) {
			found = append(found, fmt.Sprintf("spec.kubeAPIServerDNSName: %q: %s", name, message))
		}
	}
	for _, p := range issuerProblems(spec) {
		found = append(found, p.Field+": "+p.Message)
	}
	return found
}

// networksOf lists the networks that a spec names.
func networksOf(spec hypershift.HostedClusterSpec) (all []cluster.Network) {
	for i, n := range spec.Networking.ClusterNetwork {
		all = append(all, cluster.Network{
			Kind: cluster.ClusterNetwork, Index: i, CIDR: n.CIDR, HostPrefix: int(n.HostPrefix),
		})
	}
	for i, n := range spec.Networking.ServiceNetwork {
		all = append(all, cluster.Network{Kind: cluster.ServiceNetwork, Index: i, CIDR: n.CIDR})
	}
	for i, n := range spec.Networking.MachineNetwork {
		all = append(all, cluster.Network{Kind: cluster.MachineNetwork, Index: i, CIDR: n.CIDR})
	}
	return all
}

// serviceCIDR is the network of Services that a spec names, or "".
func serviceCIDR(spec hypershift.HostedClusterSpec) string {
	if len(spec.Networking.ServiceNetwork) == 0 {
		return ""
	}
	return spec.Networking.ServiceNetwork[0].CIDR
}

// serverName is the DNS name by which the router finds a plane.
func serverName(hc *hypershift.HostedCluster) string {
	if hc.Spec.KubeAPIServerDNSName != "" {
		return hc.Spec.KubeAPIServerDNSName
	}
	return apihosting.ServerName(hc.Name)
}

// paused reports whether spec.pausedUntil forbids changes at now, and for how
// long; 0: until the field changes. The error is of a text that is no pause.
func paused(until *string, now time.Time) (active bool, left time.Duration, err error) {
	if until == nil {
		return false, 0, nil
	}
	pause, err := cluster.ParsePause(*until)
	if err != nil {
		return false, 0, err
	}
	active, left = pause.At(now)
	return active, left, nil
}
