package interop

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The lifecycle manager gets the declared time after which it recovers the clusters of a lost management cluster, or
// that of its values.
func TestTheChartSetsTheTimeOfLosses(t *testing.T) {
	const declared = "region: r1\nglobal: {services: {recoverLostAfter: 30m}}\n"
	for values, want := range map[string][]string{
		"region: r1": nil,
		declared:     {"--recover-lost-after=30m"},
		declared + "clm: {recoverLostAfter: '0'}":   {"--recover-lost-after=0"},
		declared + "clm: {recoverLostAfter: 1h30m}": {"--recover-lost-after=1h30m"},
	} {
		var have []string
		for _, o := range (chartCase{"", regionalChart, values}).render(t) {
			containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
			for _, c := range containers {
				args, _, _ := unstructured.NestedStringSlice(c.(map[string]any), "args")
				for _, arg := range args {
					if strings.HasPrefix(arg, "--recover-lost-after") && o.GetName() == "atoll-clm" {
						have = append(have, arg)
					}
				}
			}
		}
		if !slices.Equal(have, want) {
			t.Errorf("%q: the lifecycle manager has %q, want %q", values, have, want)
		}
	}
}
