package local

import (
	"os"
	"reflect"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestTheChartsHaveTheSameTenancy: a lifecycle manager of the chart divides accounts as that of `atoll up` does.
func TestTheChartsHaveTheSameTenancy(t *testing.T) {
	data, err := os.ReadFile("../deploy/charts/regional-cluster/atoll/files/clm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var chart, up map[string]any
	if err := yaml.Unmarshal(data, &chart); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(CLMConfig), &up); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(chart, up) {
		t.Errorf("the chart has %v, atoll up %v", chart, up)
	}
}
