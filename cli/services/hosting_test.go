package services

import (
	"maps"
	"strings"
	"testing"
	"time"

	"atoll.dev/hosting/controlplane"
)

func TestReleasesOfTheCommandLine(t *testing.T) {
	got, err := parseReleases("--release", []string{"1.36.3=/opt/atoll-kube", "1.37.0-rc.1=/opt/a=b"})
	want := map[controlplane.Version]string{"1.36.3": "/opt/atoll-kube", "1.37.0-rc.1": "/opt/a=b"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for _, wrong := range [][]string{{"1.36.3"}, {"=/opt/x"}, {"v1.36.3=/opt/x"}, {"1.36=/opt/x"}, {"1.36.3="}, {"1.36.3+x=/a"},
		{"1.36.3=/a", "1.36.3=/b"}} {
		if c, err := parseReleases("--release", wrong); err == nil {
			t.Errorf("%q was taken as %v", wrong, c)
		}
	}
}

func TestTheQuotaOfEtcdIsASize(t *testing.T) {
	for value, want := range map[string]int64{"": 0, "16Mi": 16 << 20, "8Gi": 8 << 30, "1Mi": -1, "9Gi": -1, "much": -1} {
		if got, err := parseQuota(value); want < 0 && err == nil || want >= 0 && (err != nil || got != want) {
			t.Errorf("%q: %d, %v; want %d", value, got, err, want)
		}
	}
}

// A report of hosting with such a capacity would be refused, and with it the agent's heartbeats.
func TestHostingRefusesACapacityThatNoReportCanHave(t *testing.T) {
	for resource, amount := range map[string]int64{"a b": 1, "": 1, "planes": -1} {
		f := &hostingService{kubeconfig: "k", releases: []string{"1.36.3=/opt/atoll-kube"}, warmDomain: "example.com",
			credentialLifetime: time.Hour, capacity: map[string]int64{resource: amount}}
		f.planes.Dir, f.options.Advertise = t.TempDir(), "a.example:6443"
		if err := f.start(t.Context(), &System{}); err == nil || !strings.HasPrefix(err.Error(), "--capacity: ") {
			t.Errorf("%q=%d: %v; want an error that names --capacity", resource, amount, err)
		}
	}
}
