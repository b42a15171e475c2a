package cluster_test

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/cluster/document"
)

func TestUpgradesOfControlPlanes(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"1.36.3", "1.36.3", ""},
		{"1.36.3", "1.36.10", ""},
		{"1.36.3", "1.37.0", ""},
		{"1.36.10", "1.36.3", "does not go back"},
		{"1.36.3", "1.35.9", "does not go back"},
		{"1.36.3", "1.38.0", "one minor version at a time"},
		{"1.36.3", "2.0.0", "one minor version at a time"},
		{"2.0.0", "1.36.3", "does not go back"},
		{"1.36.0-rc.1", "1.36.0", ""},
		{"", "1.36.3", ""},
		{"unknown", "1.36.3", ""},
		{"1.36.3", "unknown", ""},
	} {
		expectError(t, c.from+" to "+c.to, cluster.CheckUpgrade(c.from, c.to), c.want)
	}
}

func TestVersionsOfNodes(t *testing.T) {
	for _, c := range []struct{ from, to, plane, want string }{
		{"", "1.36.3", "1.36.3", ""},
		{"", "1.33.1", "1.36.3", ""},
		{"", "1.32.9", "1.36.3", "too old"},
		{"", "1.36.4", "1.36.3", "upgrade that first"},
		{"", "2.0.0", "1.36.3", "upgrade that first"},
		{"", "1.36.3", "2.0.0", "too old"},
		{"1.36.3", "1.36.2", "1.36.3", "does not go back"},
		{"1.35.9", "1.36.3", "1.36.3", ""},
		{"1.36.3", "1.36.3", "", ""},
	} {
		expectError(t, c.from+" to "+c.to+" below "+c.plane, cluster.CheckNodeVersion(c.from, c.to, c.plane), c.want)
	}
}

func TestReleaseImages(t *testing.T) {
	for image, want := range map[string]string{
		cluster.ReleaseImage("1.36.3"): "1.36.3", "atoll.dev/release:v1.36.3": "", "atoll.dev/release:": "",
		"quay.io/openshift-release-dev/ocp-release:4.17.0": "", "1.36.3": "",
	} {
		if got, ok := cluster.ReleaseVersion(image); got != want || ok != (want != "") {
			t.Errorf("ReleaseVersion(%s) = %q, %v", image, got, ok)
		}
	}
}

func TestPauses(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		text   string
		active bool
		left   time.Duration
		err    string
	}{
		{"", false, 0, ""}, {"true", true, 0, ""}, {"True", true, 0, ""}, {"false", false, 0, ""},
		{"2026-11-21T12:01:00Z", true, time.Minute, ""}, {"2026-11-21T11:59:00Z", false, 0, ""},
		{"tomorrow", false, 0, "neither true nor false nor a time"},
	} {
		pause, err := cluster.ParsePause(c.text)
		expectError(t, c.text, err, c.err)
		if active, left := pause.At(now); active != c.active || left != c.left {
			t.Errorf("%q: active %v, left %v", c.text, active, left)
		}
	}
}

func expectError(t *testing.T, name string, err error, want string) {
	t.Helper()
	if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", name, err, want)
	}
}

// The networks of package front/rosa/request's tests go through JSON; these are
// what hosting reads of a HostedCluster.
func TestNetworks(t *testing.T) {
	pods, services, machines := cluster.ClusterNetwork, cluster.ServiceNetwork, cluster.MachineNetwork
	for _, c := range []struct {
		networks []cluster.Network
		want     string // "" for none
	}{
		{nil, ""},
		{[]cluster.Network{{Kind: pods, CIDR: "10.132.0.0/14", HostPrefix: 23}, {Kind: services, CIDR: "172.31.0.0/16"}}, ""},
		{[]cluster.Network{{Kind: machines, CIDR: "10.0.0.0/24"}, {Kind: machines, Index: 1, CIDR: "10.0.1.0/24"}}, ""},
		{[]cluster.Network{{Kind: services, CIDR: "fd02::/112"}},
			"n.serviceNetwork[0].cidr: \"fd02::/112\" is not an IPv4 network"},
		{[]cluster.Network{{Kind: services, CIDR: "10.0.0.0/30"}}, "n.serviceNetwork[0].cidr: 10.0.0.0/30 is too small"},
		{[]cluster.Network{{Kind: services, CIDR: "10.0.0.0/8"}}, "n.serviceNetwork[0].cidr: 10.0.0.0/8 is too large"},
		{[]cluster.Network{{Kind: pods, CIDR: "10.1.0.0/14"}}, "n.clusterNetwork[0].cidr: 10.1.0.0/14 has bits beyond"},
		{[]cluster.Network{{Kind: pods, CIDR: "127.0.0.0/16"}},
			"n.clusterNetwork[0].cidr: 127.0.0.0/16 overlaps with 127.0.0.0/8"},
		{[]cluster.Network{{Kind: pods, CIDR: "10.0.0.0/15"}, {Kind: services, CIDR: "10.1.0.0/16"}},
			"n.serviceNetwork[0].cidr: 10.1.0.0/16 overlaps with 10.0.0.0/15 of n.clusterNetwork[0].cidr"},
		{[]cluster.Network{{Kind: pods, CIDR: "10.0.0.0/15"}, {Kind: machines, CIDR: "10.0.0.0/16", IsDefault: true}},
			"n.machineNetwork[0].cidr: 10.0.0.0/16, which is the default, overlaps"},
		{[]cluster.Network{{Kind: services, CIDR: "10.0.0.0/16"}, {Kind: services, Index: 1, CIDR: "10.1.0.0/16"}},
			"n.serviceNetwork: has 2 items; 1 are possible"},
		{[]cluster.Network{{Kind: pods, CIDR: "10.0.0.0/16", HostPrefix: 16}},
			"n.clusterNetwork[0].hostPrefix: 16 leaves no room"},
		{[]cluster.Network{{Kind: machines, CIDR: "10.0.0.0/16", HostPrefix: 20}},
			"n.machineNetwork[0].hostPrefix: is of cluster"},
	} {
		var got []string
		for _, p := range cluster.CheckNetworks("n", c.networks) {
			got = append(got, p.Field+": "+p.Message)
		}
		if (len(got) > 0) != (c.want != "") || len(got) > 1 || len(got) == 1 && !strings.HasPrefix(got[0], c.want) {
			t.Errorf("%+v: %q, want %q", c.networks, got, c.want)
		}
	}
}

// Networks that are accepted are IPv4 and do not overlap, whatever was sent.
func FuzzNetworks(f *testing.F) {
	f.Add("10.132.0.0/14", "172.31.0.0/16", "10.0.0.0/16", 23)
	f.Add("fd01::/48", "::ffff:10.0.0.0/104", "10.0.0.0", 0)
	f.Fuzz(func(t *testing.T, pods, services, machines string, hostPrefix int) {
		problems := cluster.CheckNetworks("", []cluster.Network{
			{Kind: cluster.ClusterNetwork, CIDR: pods, HostPrefix: hostPrefix},
			{Kind: cluster.ServiceNetwork, CIDR: services}, {Kind: cluster.MachineNetwork, CIDR: machines},
		})
		if len(problems) > 0 {
			return
		}
		a, b, c := netip.MustParsePrefix(pods), netip.MustParsePrefix(services), netip.MustParsePrefix(machines)
		if !a.Addr().Is4() || !b.Addr().Is4() || !c.Addr().Is4() || a.Overlaps(b) || a.Overlaps(c) || b.Overlaps(c) {
			t.Errorf("%s, %s and %s are accepted", pods, services, machines)
		}
	})
}

// A cluster goes on when the region withdraws its release: it can get node pools of this release, and of no other that
// the region does not offer.
func TestNodePoolsOfAClusterWhoseReleaseIsWithdrawn(t *testing.T) {
	const own, offered = cluster.ReleaseRepository + ":1.36.3", cluster.ReleaseRepository + ":1.37.0"
	rules := cluster.NodePoolRules{Releases: cluster.Releases{{Version: "1.37.0", Image: offered}}, Image: own}
	for image, want := range map[string]string{
		"": "", own: "", offered: "upgrade that first",
		cluster.ReleaseRepository + ":1.35.1": "is not a release of this region",
	} {
		spec := map[string]any{}
		if image != "" {
			spec["nodePool"] = map[string]any{"release": map[string]any{"image": image}}
		}
		var p document.Problems
		rules.Complete(&p, spec)
		found := ""
		if len(p) > 0 {
			found = p[0].Message
		}
		if len(p) > 1 || want == "" && found != "" || !strings.Contains(found, want) {
			t.Errorf("%q: %v, want %q", image, p, want)
		}
	}
}

func TestProblemsAreSortedAndUnique(t *testing.T) {
	var p document.Problems
	p.Add("b", "is %s", "missing")
	p.Add("a", "is missing")
	p.Add("b", "is missing")
	if got := p.Sorted(); len(got) != 2 || got[0].Field != "a" || got[1].Field != "b" {
		t.Errorf("%+v", got)
	}
}

// The package decides and does nothing: neither it nor what it imports opens a
// connection or a database.
func TestThePackageIsPure(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for imported := range strings.Lines(string(out)) {
		switch imported = strings.TrimSpace(imported); {
		case imported == "net/http", imported == "os/exec", strings.HasPrefix(imported, "github.com/jackc/pgx"),
			strings.HasPrefix(imported, "atoll.dev/internal/") && imported != "atoll.dev/internal/instancetype" &&
				imported != "atoll.dev/internal/jsonvalue":
			t.Errorf("package cluster imports %s", imported)
		}
	}
}
