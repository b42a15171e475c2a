package node

import (
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
)

const (
	maxHome   = 64 // bytes: of the 107 of a Unix socket's path the shim's and kubelet's names take the rest
	maxBridge = 15 // bytes of the name of a link
	maxPods   = 250
)

// permittedLabels are the labels of the domains kubernetes.io and k8s.io that kubelet sets on its own Node.
var permittedLabels = sets.New("kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os",
	"beta.kubernetes.io/instance-type", "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
	"failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
	"topology.kubernetes.io/zone", "topology.kubernetes.io/region", "node.kubernetes.io/instance-type")

// permittedDomains are the domains below kubernetes.io whose labels kubelet sets on its own Node.
var permittedDomains = []string{"kubelet.kubernetes.io", "node.kubernetes.io"}

// Validate returns all mistakes of the config, each with the path of its member.
func (c Config) Validate() error {
	var mistakes []error
	add := func(member, format string, args ...any) {
		mistakes = append(mistakes, fmt.Errorf("%s: %w", member, fmt.Errorf(format, args...)))
	}
	for _, text := range utilvalidation.IsDNS1123Label(c.Name) {
		add("name", "%q: %s", c.Name, text)
	}
	switch {
	case !filepath.IsAbs(c.Home) || filepath.Clean(c.Home) != c.Home || c.Home == "/":
		add("home", "%q is not a clean absolute path of a directory", c.Home)
	case len(c.Home) > maxHome:
		add("home", "%q has %d bytes; Unix sockets below it allow at most %d", c.Home, len(c.Home), maxHome)
	}
	if !filepath.IsAbs(c.Programs) {
		add("programs", "%q is not an absolute path", c.Programs)
	}
	c.APIServer.validate(add)
	c.validateLabels(add)
	c.Network.validate(add)
	c.Resources.validate(add)
	if mirror, err := url.Parse(c.Images.Mirror); c.Images.Mirror != "" && (err != nil || mirror.Host == "" ||
		mirror.Scheme != "http" && mirror.Scheme != "https") {
		add("images.mirror", "%q is not an http or https URL", c.Images.Mirror)
	}
	for i, path := range c.Images.Preload {
		if !filepath.IsAbs(path) {
			add(fmt.Sprintf("images.preload[%d]", i), "%q is not an absolute path", path)
		}
	}
	return errors.Join(mistakes...)
}

func (s APIServer) validate(add func(member, format string, args ...any)) {
	for member, address := range map[string]string{"address": s.Address, "unnamedAddress": s.UnnamedAddress} {
		if err := checkHostPort(address); err != nil {
			add("apiServer."+member, "%q: %w", address, err)
		}
	}
	if len(utilvalidation.IsDNS1123Subdomain(s.ServerName)) > 0 {
		add("apiServer.tlsServerName", "%q is not a DNS name", s.ServerName)
	}
	if s.UnnamedPlane != "" && len(utilvalidation.IsDNS1123Subdomain(s.UnnamedPlane)) > 0 {
		add("apiServer.unnamedPlane", "%q is not a DNS name", s.UnnamedPlane)
	}
	if !hasCertificates(s.CA) {
		add("apiServer.ca", "is not PEM certificates")
	}
	if s.Advertised == "" {
		return
	}
	at, err := netip.ParseAddrPort(s.Advertised)
	if err != nil || !at.Addr().Is4() || at.Port() == 0 {
		add("apiServer.advertised", "%q is not IP:PORT with an IPv4 address", s.Advertised)
	} else if at.Addr().IsLoopback() || at.Addr().IsLinkLocalUnicast() || at.Addr().IsUnspecified() {
		add("apiServer.advertised", "%s: Kubernetes refuses endpoints with loopback, link-local or unspecified addresses",
			s.Advertised)
	}
}

func (c Config) validateLabels(add func(member, format string, args ...any)) {
	for _, key := range slices.Sorted(maps.Keys(c.Labels)) {
		for _, text := range utilvalidation.IsQualifiedName(key) {
			add("labels", "%q: %s", key, text)
		}
		for _, text := range utilvalidation.IsValidLabelValue(c.Labels[key]) {
			add("labels", "%s=%q: %s", key, c.Labels[key], text)
		}
		if !kubeletMaySet(key) {
			add("labels", "%s: kubelet may not set this label of Kubernetes; set it on the Node from outside", key)
		}
	}
	for i, taint := range c.Taints {
		member := fmt.Sprintf("taints[%d]", i)
		for _, text := range utilvalidation.IsQualifiedName(taint.Key) {
			add(member, "%q: %s", taint.Key, text)
		}
		for _, text := range utilvalidation.IsValidLabelValue(taint.Value) {
			add(member, "%s=%q: %s", taint.Key, taint.Value, text)
		}
		if !slices.Contains([]string{"NoSchedule", "PreferNoSchedule", "NoExecute"}, taint.Effect) {
			add(member, "effect %q is not NoSchedule, PreferNoSchedule or NoExecute", taint.Effect)
		}
	}
}

// kubeletMaySet reports whether a kubelet is allowed to set a label on its own Node.
func kubeletMaySet(key string) bool {
	domain, _, found := strings.Cut(key, "/")
	if !found || !isWithin(domain, "kubernetes.io") && !isWithin(domain, "k8s.io") || permittedLabels.Has(key) {
		return true
	}
	return slices.ContainsFunc(permittedDomains, func(permitted string) bool { return isWithin(domain, permitted) })
}

func isWithin(domain, parent string) bool {
	return domain == parent || strings.HasSuffix(domain, "."+parent)
}

func (n Network) validate(add func(member, format string, args ...any)) {
	prefix := func(member, value string) netip.Prefix {
		p, err := netip.ParsePrefix(value)
		if err != nil || !p.Addr().Is4() || p.Masked() != p {
			add("network."+member, "%q is not an IPv4 network, as 10.132.0.0/14", value)
			return netip.Prefix{}
		}
		return p
	}
	cluster, service := prefix("clusterCIDR", n.ClusterCIDR), prefix("serviceCIDR", n.ServiceCIDR)
	pods := prefix("podCIDR", n.PodCIDR)
	if cluster.IsValid() && pods.IsValid() && (pods.Bits() < cluster.Bits() || !cluster.Contains(pods.Addr())) {
		add("network.podCIDR", "%s is not within clusterCIDR %s", pods, cluster)
	}
	if pods.IsValid() && pods.Bits() > 29 {
		add("network.podCIDR", "%s has no room for pods", pods)
	}
	if dns, err := netip.ParseAddr(n.ClusterDNS); n.ClusterDNS != "" && (err != nil || !service.Contains(dns)) {
		add("network.clusterDNS", "%q is not an address within serviceCIDR %s", n.ClusterDNS, n.ServiceCIDR)
	}
	if n.Bridge == "" || len(n.Bridge) > maxBridge || strings.ContainsAny(n.Bridge, "/: \t\n") || n.Bridge[0] == '.' {
		add("network.bridge", "%q is not a name of a link with at most %d characters", n.Bridge, maxBridge)
	}
	own, err := netip.ParsePrefix(n.Address)
	if err != nil || !own.Addr().Is4() || own.Addr() == own.Masked().Addr() {
		add("network.address", "%q is not an IPv4 address with the prefix of its network, as 10.90.3.11/24", n.Address)
		return
	}
	if gateway, err := netip.ParseAddr(n.Gateway); n.Gateway != "" &&
		(err != nil || !own.Contains(gateway) || gateway == own.Addr()) {
		add("network.gateway", "%q is not another address of %s", n.Gateway, own.Masked())
	}
	networks := map[string]netip.Prefix{"clusterCIDR": cluster, "serviceCIDR": service}
	for member, network := range networks {
		if network.IsValid() && network.Overlaps(own.Masked()) {
			add("network.address", "the bridge's network %s overlaps %s %s", own.Masked(), member, network)
		}
	}
	if cluster.IsValid() && service.IsValid() && cluster.Overlaps(service) {
		add("network.serviceCIDR", "%s overlaps clusterCIDR %s", service, cluster)
	}
}

func (r Resources) validate(add func(member, format string, args ...any)) {
	if r.CPU.MilliValue() < 100 {
		add("resources.cpu", "%s is less than 100m", r.CPU.String())
	}
	if r.Memory.Value() < 128<<20 {
		add("resources.memory", "%s is less than 128Mi", r.Memory.String())
	}
	if r.Disk.Value() < 1<<30 && !r.Disk.IsZero() {
		add("resources.disk", "%s is less than 1Gi", r.Disk.String())
	}
	if r.Pods < 1 || r.Pods > maxPods {
		add("resources.pods", "%d is not between 1 and %d", r.Pods, maxPods)
	}
}

// checkHostPort returns an error unless address is HOST:PORT.
func checkHostPort(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("port %q is not between 1 and 65535", port)
	}
	if _, err := netip.ParseAddr(host); err != nil && validation.NameIsDNSSubdomain(host, false) != nil {
		return fmt.Errorf("host %q is neither an address nor a DNS name", host)
	}
	return nil
}

func hasCertificates(pem string) bool { return x509.NewCertPool().AppendCertsFromPEM([]byte(pem)) }

// defaultPrograms returns the path of atoll-node beside the running program.
func defaultPrograms() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding atoll-node: %w", err)
	}
	return filepath.Join(filepath.Dir(self), "atoll-node"), nil
}
