package hosting

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
)

func networks(cluster, service, machine string) hypershift.HostedClusterSpec {
	var s hypershift.HostedClusterSpec
	for _, c := range strings.Fields(cluster) {
		s.Networking.ClusterNetwork = append(s.Networking.ClusterNetwork, hypershift.ClusterNetworkEntry{CIDR: c})
	}
	for _, c := range strings.Fields(service) {
		s.Networking.ServiceNetwork = append(s.Networking.ServiceNetwork, hypershift.NetworkEntry{CIDR: c})
	}
	for _, c := range strings.Fields(machine) {
		s.Networking.MachineNetwork = append(s.Networking.MachineNetwork, hypershift.NetworkEntry{CIDR: c})
	}
	return s
}

func TestProblemsOfASpec(t *testing.T) {
	named := func(name string) hypershift.HostedClusterSpec {
		return hypershift.HostedClusterSpec{KubeAPIServerDNSName: name}
	}
	for _, c := range []struct {
		spec  hypershift.HostedClusterSpec
		fixed string
		want  []string // parts of the problems, in order; none: the spec is good
	}{
		{networks("10.132.0.0/14", "172.31.0.0/16", "10.0.0.0/16"), "", nil},
		{networks("10.132.0.0/14", "172.31.0.0/16", "10.0.0.0/16"), "172.31.0.0/16", nil},
		{networks("", "", ""), "10.96.0.0/16", nil},
		{networks("fd01::/48", "", ""), "", []string{"clusterNetwork[0].cidr: \"fd01::/48\" is not an IPv4 network"}},
		{networks("10.132.0.0/14", "10.133.0.0/16", ""), "",
			[]string{"serviceNetwork[0].cidr: 10.133.0.0/16 overlaps with 10.132.0.0/14"}},
		{networks("10.0.0.0/16", "", "10.0.0.0/8"), "", []string{"machineNetwork[0].cidr: 10.0.0.0/8 overlaps"}},
		{networks("10.0.0.0", "x", ""), "", []string{"clusterNetwork[0].cidr: \"10.0.0.0\" is not a network",
			"serviceNetwork[0].cidr: \"x\""}},
		{networks("10.1.0.0/14", "", ""), "", []string{"did you mean 10.0.0.0/14?"}},
		{networks("", "10.0.0.0/8", ""), "", []string{"too large"}},
		{networks("", "10.0.0.0/32", ""), "", []string{"too small"}},
		{networks("", "10.0.0.0/16 10.1.0.0/16", ""), "", []string{"has 2 items; 1 are possible"}},
		{networks("", "10.1.0.0/16", ""), "10.0.0.0/16", []string{"cannot change"}},
		{named("hc.hosted.eu.atoll.internal"), "", nil},
		{named("No Name"), "", []string{"spec.kubeAPIServerDNSName"}},
	} {
		got := problems(c.spec, c.fixed)
		ok := len(got) == len(c.want)
		for i := range c.want {
			ok = ok && strings.Contains(got[i], c.want[i])
		}
		if !ok {
			t.Errorf("%+v: %q, want %q", c.spec.Networking, got, c.want)
		}
	}
}

func TestReleasesComeFromTheCatalogue(t *testing.T) {
	releases := Releases{"1.35.9", "1.36.3", "1.36.4", "1.37.0", "1.38.1"}
	for _, c := range []struct {
		image         string
		current, want controlplane.Version
	}{
		{"atoll.dev/release:1.36.3", "", "1.36.3"},
		{"atoll.dev/release:1.36.4", "1.36.3", "1.36.4"},
		{"atoll.dev/release:1.36.3", "1.36.4", ""},
		{"atoll.dev/release:1.37.0", "1.36.3", "1.37.0"},
		{"atoll.dev/release:1.38.1", "1.36.3", ""},
		{"atoll.dev/release:1.35.9", "1.36.3", ""},
		{"atoll.dev/release:1.36.9", "1.36.3", ""},
		{"quay.io/openshift-release-dev/ocp-release:4.17.0", "", ""},
		{"1.36.3", "", ""},
		{"", "", ""},
	} {
		got, refused := releases.pick(c.image, c.current)
		if got != c.want || (refused != nil) != (c.want == "") || refused != nil &&
			refused.Reason != "VersionNotAvailable" {
			t.Errorf("%s after %q: %q, %v; want %q", c.image, c.current, got, refused, c.want)
		}
	}
}

func TestPausedUntil(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		until, want string
	}{
		{"", "false 0s <nil>"}, {"true", "true 0s <nil>"}, {"False", "false 0s <nil>"},
		{"2026-11-21T12:01:00Z", "true 1m0s <nil>"}, {"2026-11-21T11:59:00Z", "false 0s <nil>"},
		{"tomorrow", `false 0s "tomorrow" is neither true nor false nor a time such as 2027-01-02T15:04:05Z`},
	} {
		active, left, err := paused(&c.until, now)
		if got := fmt.Sprint(active, " ", left, " ", err); got != c.want {
			t.Errorf("%q: %s, want %s", c.until, got, c.want)
		}
	}
	if active, _, _ := paused(nil, now); active {
		t.Error("nothing pauses")
	}
}

// Any spec gets a verdict, and accepted networks do not overlap.
func FuzzProblems(f *testing.F) {
	f.Add("10.132.0.0/14", "172.31.0.0/16", "10.0.0.0/16", "a.example", "true", "atoll.dev/release:1.36.3")
	f.Add("fd01::/48", "fd01::/112", "::ffff:10.0.0.0/104", "-", "2026-11-21T12:00:00+99:00", "atoll.dev/release:")
	f.Fuzz(func(t *testing.T, cluster, service, machine, name, until, image string) {
		spec := networks("", "", "")
		spec.Networking.ClusterNetwork = []hypershift.ClusterNetworkEntry{{CIDR: cluster}}
		spec.Networking.ServiceNetwork = []hypershift.NetworkEntry{{CIDR: service}}
		spec.Networking.MachineNetwork = []hypershift.NetworkEntry{{CIDR: machine}}
		spec.KubeAPIServerDNSName = name
		if len(problems(spec, "")) == 0 {
			nets := []netip.Prefix{netip.MustParsePrefix(cluster), netip.MustParsePrefix(service),
				netip.MustParsePrefix(machine)}
			if nets[0].Overlaps(nets[1]) || nets[1].Overlaps(nets[2]) || nets[0].Overlaps(nets[2]) {
				t.Errorf("%v overlap and are good", nets)
			}
		}
		if active, left, err := paused(&until, time.Unix(1e9, 0)); left < 0 || err != nil && active {
			t.Errorf("%q: %v %s %v", until, active, left, err)
		}
		if version, refused := (Releases{"1.36.3"}).pick(image, ""); (refused == nil) != (version == "1.36.3") {
			t.Errorf("%q: %q, %v", image, version, refused)
		}
	})
}
