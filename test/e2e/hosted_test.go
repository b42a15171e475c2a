package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/hosting"
	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/test/localtest"
)

// A customer's cluster is created by a signed POST, becomes ready with its nodes, is used with a
// kubeconfig through the router, changed, and deleted while the adapters are killed. Then nothing
// of it remains (I9).
func TestI9ACustomersClusterIsCreatedAndDeletedWithoutRemains(t *testing.T) {
	r := localtest.Shared(t)
	api, ctx := r.API(), t.Context()
	begun := time.Now()
	cluster, err := api.CreateCluster(ctx, platform.ClusterRequest{Name: "from-post-to-nothing"})
	if err != nil {
		t.Fatal(err)
	}
	replicas := int32(2)
	pool, err := api.CreateNodePool(ctx, platform.NodePoolRequest{ClusterID: cluster.ID, Name: "workers",
		Spec: &platform.NodePoolSpec{
			Replicas: &replicas, Labels: map[string]string{"team": "a"},
			Platform: &platform.NodePoolPlatform{Type: "AWS", AWS: &platform.NodePoolAWS{InstanceType: "m6a.xlarge"}},
		}})
	if err != nil {
		t.Fatal(err)
	}
	ready := func() error {
		c, err := api.Cluster(ctx, client.ClusterID(cluster.ID))
		if err == nil && (c.Status.Phase != platform.ClusterPhaseReady || c.Status.ObservedGeneration != c.Generation) {
			err = fmt.Errorf("%+v", c.Status)
		}
		return err
	}
	localtest.Eventually(t, 3*time.Minute, ready)
	t.Logf("ready after %s", time.Since(begun).Round(time.Millisecond))
	made, err := api.CreateCredential(ctx, client.ClusterID(cluster.ID),
		platform.CredentialRequest{ExpirationSeconds: 6 * 3600})
	if err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) (string, error) { return runKubectl(t, made.Kubeconfig, args...) }
	nodes := func(want int) func() error {
		return func() error {
			out, err := kubectl("get", "nodes", "-l", "team=a", "-o", "name")
			if got := strings.Count(out, "node/"); err == nil && got != want {
				err = fmt.Errorf("%d nodes: %s", got, out)
			}
			return err
		}
	}
	localtest.Eventually(t, 3*time.Minute, nodes(2))
	t.Logf("two nodes after %s", time.Since(begun).Round(time.Millisecond))
	if out, err := kubectl("auth", "can-i", "*", "*"); err != nil || strings.TrimSpace(out) != "yes" {
		t.Errorf("the creator is no administrator: %s %v", out, err)
	}
	if _, err := kubectl("create", "secret", "generic", "audited", "--from-literal=key=hidden"); err != nil {
		t.Fatal(err)
	}
	localtest.Eventually(t, 3*time.Minute, func() error { // the plane writes its log in the background
		log, err := r.Try("cluster", "audit", cluster.Name, "--verb", "create,delete", "--resource", "secrets",
			"--since", "1h", "-o", "json")
		if !strings.Contains(log, `"name": "audited"`) || strings.Contains(log, "hidden") {
			return fmt.Errorf("the audit log of the cluster: %s %v", log, err)
		}
		return nil
	})
	if _, err := api.UpdateNodePool(ctx, client.NodePoolID(pool.ID),
		json.RawMessage(`{"spec":{"replicas":3}}`), ""); err != nil {
		t.Fatal(err)
	}
	localtest.Eventually(t, 3*time.Minute, nodes(3))
	if _, err := api.UpdateCluster(ctx, client.ClusterID(cluster.ID),
		json.RawMessage(`{"spec":{"displayName":"another"}}`), ""); err != nil {
		t.Fatal(err)
	}
	localtest.Eventually(t, 3*time.Minute, ready)

	if err := api.DeleteCluster(ctx, client.ClusterID(cluster.ID), client.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	localtest.Kill(t, r.Process("adapter").PID)
	begun = time.Now()
	localtest.Eventually(t, 3*time.Minute, func() error {
		c, err := api.Cluster(ctx, client.ClusterID(cluster.ID))
		if remote.StatusOf(err) == 404 {
			return nil
		}
		return fmt.Errorf("%+v, %v", c.Status, err)
	})
	t.Logf("gone after %s", time.Since(begun).Round(time.Millisecond))
	namespace, hc := hosting.Namespace(cluster.ID), hosting.HostedClusterName(cluster.ID)
	if out := r.Kubectl("management-01", "get", "namespace,appliedmanifestwork", "-o", "name"); strings.Contains(
		out, cluster.ID) {
		t.Errorf("left on the management cluster: %s", out)
	}
	if out := r.Kubectl("management-01", "get", "hostedclusters,nodepools,credentials", "-n", namespace, "-o",
		"name"); out != "" {
		t.Errorf("left on the management cluster: %s", out)
	}
	for _, p := range r.Status().Planes {
		if p.HostedCluster == hc {
			t.Errorf("left: process %d", p.PID)
		}
	}
	if list := r.Atoll("clm", "list", "all"); strings.Contains(list, cluster.ID) || strings.Contains(list, pool.ID) {
		t.Errorf("left in the lifecycle manager: %s", list)
	}
	err = filepath.WalkDir(filepath.Join(r.Home, "management"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && (strings.Contains(d.Name(), cluster.ID) || strings.Contains(d.Name(), hc)) {
			t.Errorf("left: %s", path)
		}
		return nil // others' files come and go
	})
	if err != nil {
		t.Error(err)
	}
}
