package interop

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// An empty list of addresses permits nobody: no rule of a network policy has an empty list of peers or of ports, which
// Kubernetes reads as everybody and every port.
func TestEmptyListsOfAddressesPermitNobody(t *testing.T) {
	cases := append(chartCases(t)[:5:5],
		chartCase{"regional, nobody", regionalChart, "{region: r1, networkPolicy: {customers: [], managementClusters: []}}"},
		chartCase{"management, nobody", managementChart, "{global: {cluster: c, domain: d}, hosting: {enabled: true, " +
			"advertise: 'h:1'}, networkPolicy: {customers: []}}"})
	for _, c := range cases {
		var policies int
		for _, o := range c.render(t) {
			if o.GetKind() != "NetworkPolicy" {
				continue
			}
			policies++
			for _, direction := range []string{"ingress", "egress"} {
				rules, _, err := unstructured.NestedSlice(o.Object, "spec", direction)
				if err != nil {
					t.Errorf("%s: %s: %v", c.name, o.GetName(), err)
				}
				for _, rule := range rules {
					for key, list := range rule.(map[string]any) {
						if items, _ := list.([]any); len(items) == 0 {
							t.Errorf("%s: %s: a rule of %s has an empty list %s", c.name, o.GetName(), direction, key)
						}
					}
				}
			}
		}
		if policies == 0 {
			t.Errorf("%s: no policy", c.name)
		}
	}
}

// A change of the lifecycle manager's file restarts the pods that read it, those of the sentinel, too.
func TestPodsRestartWhenTheFileOfCLMChanges(t *testing.T) {
	checksums := func(size int) map[string]string {
		c := chartCase{"", regionalChart, fmt.Sprintf(
			"{region: r1, sentinel: {enabled: true}, clm: {config: {server: {max_resource_bytes: %d}}}}", size)}
		sums := map[string]string{}
		for _, o := range c.render(t) {
			if o.GetKind() == "StatefulSet" && slices.Contains([]string{"atoll-clm", "atoll-sentinel"}, o.GetName()) {
				sums[o.GetName()], _, _ = unstructured.NestedString(o.Object, "spec", "template", "metadata", "annotations",
					"checksum/config")
			}
		}
		return sums
	}
	before, after := checksums(1<<20), checksums(1<<21)
	for _, name := range []string{"atoll-clm", "atoll-sentinel"} {
		if before[name] == "" || before[name] == after[name] {
			t.Errorf("%s: the checksum is %q before the change and %q after it", name, before[name], after[name])
		}
	}
}
