package interop

import (
	"fmt"
	"maps"
	"slices"
	"strings"
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

// Customers' addresses reach customers' listener only, and operators' addresses theirs. Without addresses of operators
// nobody reaches it.
func TestTheListenerOfOperatorsHasItsOwnNetworkPolicy(t *testing.T) {
	reach := func(values string) map[string]string { // the port that each list of addresses reaches
		ports := map[string]string{}
		for _, o := range (chartCase{"", regionalChart, values}).render(t) {
			if o.GetKind() != "NetworkPolicy" || !strings.HasPrefix(o.GetName(), "atoll-platform") {
				continue
			}
			rules, _, _ := unstructured.NestedSlice(o.Object, "spec", "ingress")
			for _, rule := range rules {
				ports[fmt.Sprint(rule.(map[string]any)["from"])] = fmt.Sprint(rule.(map[string]any)["ports"])
			}
		}
		return ports
	}
	customers := "[map[ipBlock:map[cidr:10.4.0.0/16]]]"
	operators := "[map[ipBlock:map[cidr:10.3.0.0/16]]]"
	for _, tc := range []struct {
		values string
		want   map[string]string
	}{
		{"platform: {operators: {enabled: true}}, networkPolicy: {customers: [10.4.0.0/16], operators: [10.3.0.0/16]}",
			map[string]string{customers: "[map[port:https]]", operators: "[map[port:8444]]"}},
		{"platform: {operators: {enabled: true}}, networkPolicy: {customers: [10.4.0.0/16]}",
			map[string]string{customers: "[map[port:https]]"}},
		{"networkPolicy: {customers: [10.4.0.0/16], operators: [10.3.0.0/16]}",
			map[string]string{customers: "[map[port:https]]"}},
	} {
		if got := reach("{region: r1, " + tc.values + "}"); !maps.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.values, got, tc.want)
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

// With a Secret of backups, hosting reads the file that the Secret mounts and reaches the store; without one, neither.
func TestHostingReachesTheStoreOfItsBackups(t *testing.T) {
	rendered := func(values string) string {
		var all strings.Builder
		for _, o := range (chartCase{"", managementChart, values}).render(t) {
			if o.GetNamespace() == "atoll-hosting" && (o.GetKind() == "NetworkPolicy" || o.GetKind() == "StatefulSet") {
				fmt.Fprintln(&all, o.Object)
			}
		}
		return all.String()
	}
	const least = "global: {cluster: c, domain: d}\nhosting: {enabled: true, advertise: 'h:1'"
	with, without := rendered(everyManagementOption), rendered(least+"}")
	for _, part := range []string{"--backups=/etc/atoll/backups/store.yaml", "mountPath:/etc/atoll/backups ",
		"secretName:atoll-backups", "cidr:10.8.0.0/16", "port:9000"} {
		if !strings.Contains(with, part) {
			t.Errorf("with backups: %s is missing", part)
		}
	}
	if strings.Contains(without, "backups") || strings.Contains(without, "0.0.0.0/0]]] ports:[map[port:443") {
		t.Errorf("without backups: %s", without)
	}
}
