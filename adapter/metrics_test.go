package adapter

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// The names are hyperfleet-adapter's (reference 3.8), and each adapter of a
// process has its own.
func TestMetricsHaveTheirNames(t *testing.T) {
	registry := prometheus.NewRegistry()
	for _, name := range []string{"one", "two"} {
		m := NewMetrics(registry, name, "v1")
		m.up.Set(1)
		m.countRun(Success, time.Millisecond)
		m.countError(string(Resources))
		m.Observer().Deleting("ConfigMap")
		m.Observer().Deleted("ConfigMap", errors.New("refused"), time.Millisecond)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, f := range families {
		var labels []string
		for _, l := range f.Metric[0].Label {
			labels = append(labels, l.GetName())
		}
		got[f.GetName()] = labels
		for _, adapter := range []string{"one", "two"} {
			if !slices.ContainsFunc(f.Metric, func(m *dto.Metric) bool {
				return m.Label[0].GetName() == "component" && m.Label[0].GetValue() == adapter
			}) {
				t.Errorf("%s has nothing of %s", f.GetName(), adapter)
			}
		}
	}
	want := map[string][]string{
		"hyperfleet_adapter_up":                                 {"component", "version"},
		"hyperfleet_adapter_build_info":                         {"component", "version"},
		"hyperfleet_adapter_events_processed_total":             {"component", "status", "version"},
		"hyperfleet_adapter_event_processing_duration_seconds":  {"component", "version"},
		"hyperfleet_adapter_errors_total":                       {"component", "error_type", "version"},
		"hyperfleet_adapter_resources_deleted_total":            {"component", "kind", "status", "version"},
		"hyperfleet_adapter_resource_deletion_duration_seconds": {"component", "kind", "version"},
		"hyperfleet_adapter_resource_deletions_in_progress":     {"component", "kind", "version"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
