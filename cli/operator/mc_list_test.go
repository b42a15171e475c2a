package operator

import (
	"strings"
	"testing"

	"atoll.dev/api/platform"
)

func TestManagementClustersShowTheirWarmPlanes(t *testing.T) {
	of := func(name string, hosting *platform.HostingFigures) platform.ManagementCluster {
		return platform.ManagementCluster{Name: name, State: platform.ManagementClusterStateReady,
			Capacity: platform.Capacity{"planes": 40}, Reserved: platform.Capacity{"planes": 3, "memory_mib": 1050},
			Hosting: hosting}
	}
	var list strings.Builder
	managementClustersTable(&list, []platform.ManagementCluster{of("one", &platform.HostingFigures{WarmPlanes: 2}),
		of("old", nil)})
	for _, want := range []string{
		"NAME   STATE   PLANES   MEMORY MIB   WARM   LAST SEEN   VERSIONS   LABELS",
		"one    Ready   3/40     1050         2      never       -",
		"old    Ready   3/40     1050         -      never       -",
	} {
		if !strings.Contains(list.String(), want) {
			t.Errorf("the list has no %q:\n%s", want, &list)
		}
	}
	for _, c := range []struct {
		name    string
		hosting *platform.HostingFigures
		want    string // its lines about hosting, without repeated spaces
	}{
		{"no report", nil, ""},
		{"hosting was told no capacity", &platform.HostingFigures{WarmPlanes: 1}, "Warm planes 1"},
		{"the same capacity", &platform.HostingFigures{Capacity: platform.Capacity{"planes": 40}}, "Warm planes 0"},
		{"another capacity", &platform.HostingFigures{Capacity: platform.Capacity{"planes": 30}},
			"Warm planes 0; Hosting --capacity planes=30 bounds warm planes only; see: atoll mc update --help"},
		{"a resource without a limit", &platform.HostingFigures{Capacity: platform.Capacity{"planes": 2, "memory_mib": 9}},
			"Warm planes 0; Hosting --capacity memory_mib=9,planes=2 bounds warm planes only; see: atoll mc update --help"},
	} {
		var text strings.Builder
		managementClusterTable(&text, of("one", c.hosting))
		var found []string
		for line := range strings.Lines(text.String()) {
			line = strings.Join(strings.Fields(line), " ")
			if strings.HasPrefix(line, "Warm") || strings.HasPrefix(line, "Hosting") {
				found = append(found, line)
			}
		}
		if got := strings.Join(found, "; "); got != c.want {
			t.Errorf("%s: it has %q, want %q", c.name, got, c.want)
		}
	}
}
