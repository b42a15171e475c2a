package progress

import (
	"encoding/json"
	"reflect"
	"testing"

	"atoll.dev/api/clm"
	"atoll.dev/cluster"
)

// The status of a cluster is computed from the data of one report, which is filtered as in the list of all reports.
func TestTheDataOfOneReportIsFilteredAsInAllReports(t *testing.T) {
	for _, data := range []string{
		``, `{}`, `null`, `[1]`, `{"version":`,
		`{"target_cluster":"mc-1","version":"1.34.1","endpoint":{"host":"mc-1.example","port":443}}`,
		`{"target_cluster":"mc-1","degraded":"\u006dc-1 is <full> & \"slow\"; see mc-10",` +
			`"size":{"class":"small","nodes":12345678901234567890}}`,
		`{"stages":{"ready":"on management cluster mc-1."},"upgrade":{"message":"mc-1"},"power":1}`,
	} {
		reports := cluster.Reports{
			{Adapter: string(cluster.AdapterPlacement), Data: json.RawMessage(`{"management_cluster":"mc-1","why":"full"}`)},
			{Adapter: string(cluster.AdapterHostedCluster), Data: json.RawMessage(data)},
		}
		for _, visibility := range []Visibility{HidePlacement, ShowPlacement} {
			f := newFilter(visibility, nil, reports)
			want := f.reports(reports).HostedCluster()
			if got := f.dataOf(cluster.AdapterHostedCluster).HostedCluster(); !reflect.DeepEqual(got, want) {
				t.Errorf("%s, visibility %d:\ngot  %+v\nwant %+v", data, visibility, got, want)
			}
		}
	}
	if got := (filter{}).dataOf(cluster.AdapterNodePool); got != nil {
		t.Errorf("an adapter that has not reported: %v", got)
	}
}

// The names in a JSON value are replaced, and everything else has the same bytes as encoding/json writes.
func TestFilteredDataIsAsEncodingJSONWritesIt(t *testing.T) {
	f := newFilter(HidePlacement, []cluster.ManagementCluster{"mc-1"}, nil)
	for text, want := range map[string]string{
		`{"b": "on mc-1", "a": [1.50, 1e3, "\u00e9<&>", null, true]}`: `{"a":[1.50,1e3,"é\u003c\u0026\u003e",null,true],` +
			`"b":"on the management cluster"}`,
		`{"endpoint":{"host":"mc-1"},"mc-1":"mc-10"}`: `{"endpoint":{"host":"mc-1"},"mc-1":"mc-10"}`,
		`"\u2028mc-1"`: `"\u2028the management cluster"`,
		`{"cut`:        ``,
	} {
		if got := f.object(json.RawMessage(text)); string(got) != want {
			t.Errorf("%s:\ngot  %s\nwant %s", text, got, want)
		}
	}
}

// BenchmarkClusterStatus computes the status of a cluster as its customer, or an operator, reads it.
func BenchmarkClusterStatus(b *testing.B) {
	data := json.RawMessage(`{"target_cluster":"mc-1","namespace":"clusters-1","hosted_cluster":"c1","server_name":` +
		`"c1.example","endpoint":{"host":"c1.example","port":443},"version":"1.34.1","power":"Awake","stages":` +
		`{"ordered":"2026-01-02T03:04:05Z","plane_starting":"2026-01-02T03:04:06Z","api_serving":"2026-01-02T03:04:07Z",` +
		`"ready":"2026-01-02T03:04:08Z"},"size":{"class":"small","memory_mib":500,"processes":200}}`)
	r := clm.Resource{Generation: 1}
	for _, adapter := range []cluster.Adapter{cluster.AdapterHostedCluster, cluster.AdapterPlacement,
		cluster.AdapterPullSecret, "dns"} {
		r.Statuses = append(r.Statuses, clm.AdapterStatus{Adapter: string(adapter), ObservedGeneration: 1, Data: data,
			Conditions: []clm.AdapterCondition{{Type: string(cluster.ConditionAvailable), Status: cluster.StatusTrue}}})
	}
	for name, visibility := range map[string]Visibility{"customer": HidePlacement, "operator": ShowPlacement} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				OfCluster(r, visibility)
			}
		})
	}
}
