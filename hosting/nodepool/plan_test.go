package nodepool

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"atoll.dev/api/hypershift"
	"atoll.dev/internal/instancetype"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func want(replicas int, version string) wanted {
	t, _ := instancetype.Lookup("m5.large")
	return wanted{replicas: replicas, version: version, instance: t, autoRepair: true, pods: defaultPods,
		machines: defaultMachines, hostBits: defaultHostBits, replacement: replacement{surge: 1}}
}

// testNode returns node number i. Its readiness is unchanged since epoch.
func testNode(i int, version string, ready metav1.ConditionStatus) *node {
	n := &node{Metadata: metav1.ObjectMeta{Name: nodeName("n", i), Labels: map[string]string{
		instanceTypeLabel: "m5.large"}, CreationTimestamp: metav1.NewTime(epoch)}}
	n.Status.NodeInfo.KubeletVersion = "v" + version
	setReady(n, ready)
	return n
}

func setReady(n *node, ready metav1.ConditionStatus) {
	n.Status.Conditions = []condition{{Type: "Ready", Status: string(ready), LastTransitionTime: metav1.NewTime(epoch)}}
}

// From any nodes and any events in any order a pool converges to its spec. A rollout leaves as many nodes ready as its
// limits say, and makes no more than they permit.
func TestPlanConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := want(rapid.IntRange(0, 5).Draw(t, "replicas"), "1.36.3")
		w.inPlace = rapid.Bool().Draw(t, "in place")
		w.replacement.unavailable = rapid.IntRange(0, w.replicas).Draw(t, "unavailable")
		w.replacement.surge = rapid.IntRange(0, 3).Draw(t, "surge")
		if w.replacement.unavailable == 0 {
			w.replacement.surge = max(w.replacement.surge, 1)
		}
		var nodes []*node
		for i := range rapid.IntRange(0, 7).Draw(t, "nodes") {
			n := testNode(i, rapid.SampledFrom([]string{"1.36.2", "1.36.3"}).Draw(t, "version"),
				statusOf(rapid.Bool().Draw(t, "ready")))
			if rapid.Bool().Draw(t, "draining") {
				n.Metadata.Annotations = map[string]string{drainingAnnotation: epoch.Format(time.RFC3339)}
			}
			nodes = append(nodes, n)
		}
		remove := func(gone *node) {
			var rest []*node
			for _, n := range nodes {
				if n != gone {
					rest = append(rest, n)
				}
			}
			nodes = rest
		}
		for range 100 {
			before, d := serving(nodes), plan(w, nodes, epoch.Add(time.Minute), time.Hour)
			for _, name := range freeNames("n", nodes, d.createCount) {
				n := testNode(0, w.version, metav1.ConditionFalse)
				n.Metadata.Name = name
				nodes = append(nodes, n)
			}
			for _, n := range d.inPlace {
				n.Status.NodeInfo.KubeletVersion = "v" + w.version
			}
			for _, n := range d.drain {
				n.Metadata.Annotations = map[string]string{drainingAnnotation: "now"}
			}
			if after := serving(nodes); after < before && after < w.replicas-w.replacement.unavailable {
				t.Fatalf("%d of %d wanted nodes served, and then %d", before, w.replicas, after)
			}
			live := 0
			for _, n := range nodes {
				if !n.isDraining() {
					live++
				}
			}
			if live > max(w.replicas+w.replacement.surge, 7) {
				t.Fatalf("%d nodes for %d wanted", live, w.replicas)
			}
			// Another event: a node becomes ready, or disappears.
			for _, n := range nodes {
				switch {
				case n.isDraining() && rapid.Bool().Draw(t, "drained"):
					remove(n)
				case !n.isReady() && rapid.Bool().Draw(t, "becomes ready"):
					setReady(n, metav1.ConditionTrue)
				}
			}
		}
		for _, n := range nodes {
			setReady(n, metav1.ConditionTrue)
		}
		for range 40 { // and now all goes well
			d := plan(w, nodes, epoch.Add(time.Minute), time.Hour)
			for _, n := range d.drain {
				remove(n)
			}
			for _, name := range freeNames("n", nodes, d.createCount) {
				n := testNode(0, w.version, metav1.ConditionTrue)
				n.Metadata.Name = name
				nodes = append(nodes, n)
			}
			for _, n := range d.inPlace {
				n.Status.NodeInfo.KubeletVersion = "v" + w.version
			}
		}
		for _, n := range nodes {
			if !w.isCurrent(n) {
				t.Fatalf("%s is outdated for good", n.Metadata.Name)
			}
		}
		if len(nodes) != w.replicas {
			t.Fatalf("%d nodes, %d wanted", len(nodes), w.replicas)
		}
	})
}

// serving counts the nodes that pods may stay on.
func serving(nodes []*node) (n int) {
	for _, x := range nodes {
		if x.isReady() && !x.isDraining() {
			n++
		}
	}
	return n
}

func TestARepairWaitsForItsDelay(t *testing.T) {
	w := want(1, "1.36.3")
	n := testNode(0, "1.36.3", metav1.ConditionFalse)
	if d := plan(w, []*node{n}, epoch.Add(time.Minute), time.Hour); len(d.remove) > 0 || d.again != 59*time.Minute {
		t.Errorf("after a minute: %+v", d)
	}
	if d := plan(w, []*node{n}, epoch.Add(time.Hour), time.Hour); len(d.remove) != 1 || d.createCount != 1 {
		t.Errorf("after the time: %+v", d)
	}
	w.autoRepair = false
	if d := plan(w, []*node{n}, epoch.Add(time.Hour), time.Hour); len(d.remove) > 0 || d.createCount > 0 {
		t.Errorf("without auto-repair: %+v", d)
	}
}

func TestReadNodePool(t *testing.T) {
	hc := &hypershift.HostedCluster{Spec: hypershift.HostedClusterSpec{Release: hypershift.Release{
		Image: "atoll.dev/release:1.36.3"}}}
	two, many := int32(2), int32(maxReplicas+1)
	for name, c := range map[string]struct {
		change func(*hypershift.NodePoolSpec)
		broken string // condition
	}{
		"plain":         {func(*hypershift.NodePoolSpec) {}, ""},
		"older release": {func(s *hypershift.NodePoolSpec) { s.Release.Image = "atoll.dev/release:1.33.0" }, ""},
		"much older release": {func(s *hypershift.NodePoolSpec) { s.Release.Image = "atoll.dev/release:1.32.9" },
			"ValidReleaseImage"},
		"newer release": {func(s *hypershift.NodePoolSpec) { s.Release.Image = "atoll.dev/release:1.36.4" },
			"ValidReleaseImage"},
		"no release": {func(s *hypershift.NodePoolSpec) { s.Release.Image = "quay.io/ocp:4.19" },
			"ValidReleaseImage"},
		"unknown machine": {func(s *hypershift.NodePoolSpec) {
			s.Platform.AWS = &hypershift.AWSNodePoolPlatform{
				InstanceType: "x"}
		}, "ValidPlatformConfig"},
		"other architecture": {func(s *hypershift.NodePoolSpec) { s.Arch = "arm64" }, "ValidPlatformConfig"},
		"other platform": {func(s *hypershift.NodePoolSpec) { s.Platform.Type = "KubeVirt" },
			"ValidPlatformConfig"},
		"too many": {func(s *hypershift.NodePoolSpec) { s.Replicas = &many }, "ValidPlatformConfig"},
		"ARM where it is one": {func(s *hypershift.NodePoolSpec) {
			s.Arch, s.Platform.AWS = "arm64", &hypershift.AWSNodePoolPlatform{InstanceType: "m6g.large"}
		}, ""},
	} {
		pool := &hypershift.NodePool{Spec: hypershift.NodePoolSpec{Replicas: &two}}
		c.change(&pool.Spec)
		w := readSpec(pool, hc, "v1.36.3")
		if c.broken == "" && len(w.invalid) > 0 || c.broken != "" &&
			(len(w.invalid) != 1 || w.invalid[0].condition != c.broken) {
			t.Errorf("%s: %+v, want %q", name, w.invalid, c.broken)
		}
	}
}

func TestPlacesInANetwork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		network := netip.MustParsePrefix(rapid.SampledFrom([]string{"10.132.0.0/14", "10.0.0.0/16", "192.168.3.0/24",
			"fd00:1::/48"}).Draw(t, "network"))
		bits := rapid.IntRange(network.Bits(), min(network.Bits()+16, network.Addr().BitLen())).Draw(t, "bits")
		i := rapid.IntRange(0, 1<<(bits-network.Bits())-1).Draw(t, "i")
		p, ok := subnet(network, bits, i)
		if !ok || p.Bits() != bits || p.Masked() != p || !network.Contains(p.Addr()) {
			t.Fatalf("network %d of /%d in %s is %s, %t", i, bits, network, p, ok)
		}
		if back, ok := subnetIndex(network, p.String()); !ok || back != i {
			t.Fatalf("%s is network %d of %s, not %d (%t)", p, i, network, back, ok)
		}
		if p, ok := subnet(network, bits, 1<<(bits-network.Bits())); ok {
			t.Fatalf("beyond the end of %s is %s", network, p)
		}
	})
	for want, p := range map[string]netip.Prefix{"10.0.0.16": defaultMachines, "10.132.0.16": defaultPods} {
		if got, ok := offset(p, 16); !ok || fmt.Sprint(got) != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if at, ok := offset(netip.MustParsePrefix("255.255.255.0/24"), 256); ok {
		t.Errorf("beyond the end is %s", at)
	}
}
