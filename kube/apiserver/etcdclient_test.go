package apiserver

import (
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"atoll.dev/kube/etcd"
)

// Upstream's storage reaches an etcd that listens nowhere, and knows that it reports the progress of watches.
func TestUpstreamsStorageUsesTheClient(t *testing.T) {
	member, err := etcd.Start(etcd.Options{Dir: filepath.Join(t.TempDir(), "etcd")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(member.Stop)
	useEtcd(t.Context(), member.Client, etcd.Endpoint)
	config := storagebackend.NewDefaultConfig("/registry", nil)
	config.Transport.ServerList = []string{etcd.Endpoint}
	prober, err := factory.CreateProber(*config)
	if err != nil {
		t.Fatal(err)
	}
	if err := prober.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	retry := time.NewTicker(10 * time.Millisecond)
	defer retry.Stop()
	deadline, checker := time.After(time.Minute), feature.DefaultFeatureSupportChecker
	for !checker.Supports(storage.RequestWatchProgress) {
		select {
		case <-retry.C:
		case <-deadline:
			t.Fatal("upstream does not know that etcd reports the progress of watches")
		}
	}
}
