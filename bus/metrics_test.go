package bus

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// The metrics have the original's names, and a sender cannot create label values.
func TestMetricsHaveBoundedLabels(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newClientMetrics(reg)
	const bundles = "io.open-cluster-management.works.v1alpha1.manifestbundles"
	for _, kind := range []string{
		bundles + ".spec.create_request", bundles + ".spec.create_request", bundles +
			".status.resync_response", bundles + ".status.EVIL",
		bundles + ".x.y.z", "evil.spec.create_request", "dev.atoll.agent.v1.seen", "", "a",
	} {
		m.countSent(kind)
		m.countReceived(kind)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		for _, s := range f.Metric {
			labels := ""
			for _, l := range s.Label { // by name
				labels += fmt.Sprintf("%s=%q ", l.GetName(), l.GetValue())
			}
			if labels != "" {
				got = append(got, fmt.Sprintf("%s %s%v", f.GetName(), labels, s.Counter.GetValue()))
			}
		}
	}
	var want []string
	for _, name := range []string{"cloudevents_received_total", "cloudevents_sent_total"} {
		want = append(want,
			name+` action="" subresource="" type="other" 6`,
			name+` action="create_request" subresource="spec" type="`+bundles+`" 2`,
			name+` action="resync_response" subresource="status" type="`+bundles+`" 1`)
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
