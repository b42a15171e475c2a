package interop

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Hosting gets the flags of warm planes with the values of the pool, and none without.
func TestTheChartHasWarmPlanes(t *testing.T) {
	const hosting = "global: {cluster: c, domain: r1.example.com}\nhosting: {enabled: true, advertise: 'mc:6443'"
	for values, want := range map[string][]string{
		hosting + "}": nil,
		hosting + ", warmPlanes: {count: 0, capacity: {planes: 4}}}": nil,
		hosting + ", warmPlanes: {count: 2}}": {
			"--warm-planes=2", "--warm-domain=hosted.r1.example.com"},
		hosting + ", warmPlanes: {count: 2, domain: x.example, capacity: {planes: 40, memory_mib: 16000000}}}": {
			"--warm-planes=2", "--warm-domain=x.example", "--capacity=memory_mib=16000000", "--capacity=planes=40"},
	} {
		var have []string
		for _, o := range (chartCase{"", managementChart, values}).render(t) {
			if o.GetKind() != "StatefulSet" {
				continue
			}
			containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
			args, _, _ := unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
			for _, arg := range args {
				if strings.HasPrefix(arg, "--warm") || strings.HasPrefix(arg, "--capacity") {
					have = append(have, arg)
				}
			}
		}
		if !slices.Equal(have, want) {
			t.Errorf("%q: hosting has %q, want %q", values, have, want)
		}
	}
}
