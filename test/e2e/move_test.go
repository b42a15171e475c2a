package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/fleet"
	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/test/localtest"
)

// An operator moves a customer's cluster to another management cluster. What was written before is there, the old
// kubeconfig works until the move is finished, node pools and credentials follow, and nothing stays on the source. A
// drain moves it back, and its deletion, while the drained management cluster forwards, leaves nothing on either.
func TestI1I9AnOperatorMovesACluster(t *testing.T) {
	t.Parallel()
	r := localtest.New(t, "--backups", "--management-clusters", "2")
	api, ctx := r.API(), t.Context()
	cluster, err := api.CreateCluster(ctx, platform.ClusterRequest{Name: "moves"})
	if err != nil {
		t.Fatal(err)
	}
	replicas := int32(2)
	if _, err := api.CreateNodePool(ctx, platform.NodePoolRequest{ClusterID: cluster.ID, Name: "workers",
		Spec: &platform.NodePoolSpec{Replicas: &replicas}}); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, api, client.ClusterID(cluster.ID))
	made, err := api.CreateCredential(ctx, client.ClusterID(cluster.ID),
		platform.CredentialRequest{ExpirationSeconds: 6 * 3600})
	if err != nil {
		t.Fatal(err)
	}

	if _, err := runKubectl(t, made.Kubeconfig, "create", "configmap", "before", "--from-literal=a=b"); err != nil {
		t.Fatal(err)
	}

	move := func(args ...string) fleet.Move {
		t.Helper()
		var p fleet.Placement
		out := r.Atoll(append([]string{"cluster", "move", "moves", "--wait", "--timeout", "10m", "-o", "json"}, args...)...)
		if err := json.Unmarshal([]byte(out), &p); err != nil || p.Move == nil {
			t.Fatalf("%s: %v", out, err)
		}
		return *p.Move
	}
	moved := move()
	if moved.Phase != fleet.Forwarding || moved.From == moved.To {
		t.Fatalf("the move is %+v", moved)
	}
	for _, name := range []string{"before", "after"} {
		if name == "after" {
			if _, err := runKubectl(t, made.Kubeconfig, "create", "configmap", name, "--from-literal=a=b"); err != nil {
				t.Error(err)
			}
		}
		if _, err := runKubectl(t, made.Kubeconfig, "get", "configmap", name); err != nil {
			t.Errorf("through the router of the source: %v", err)
		}
	}
	parts := func(management string) string {
		return r.Kubectl(management, "get", "nodepools,credentials", "-A", "-o", "name")
	}
	localtest.Eventually(t, 3*time.Minute, func() error {
		if left := parts(moved.From); left != "" {
			return fmt.Errorf("left on the source: %s", left)
		}
		if have := parts(moved.To); strings.Count(have, "/") != 2 {
			return fmt.Errorf("on the target: %s", have)
		}
		return nil
	})
	awaitReady(t, api, client.ClusterID(cluster.ID))
	later, err := api.CreateCredential(ctx, client.ClusterID(cluster.ID),
		platform.CredentialRequest{ExpirationSeconds: 6 * 3600})
	if err != nil {
		t.Fatal(err)
	}
	if ended := move("--finish"); ended.Phase != fleet.Moved {
		t.Errorf("the move is %+v", ended)
	}
	if left := r.Kubectl(moved.From, "get", "hostedclusters,nodepools,credentials", "-A", "-o", "name"); left != "" {
		t.Errorf("left on the source: %s", left)
	}
	localtest.Eventually(t, 3*time.Minute, func() error {
		out, err := runKubectl(t, later.Kubeconfig, "get", "nodes", "-o", "name")
		if err == nil && strings.Count(out, "node/") != 2 {
			err = fmt.Errorf("nodes %s", out)
		}
		return err
	})

	// A drain moves it back.
	var drained struct{ Moved, Stayed []json.RawMessage }
	out := r.Atoll("mc", "drain", moved.To, "--move", "-o", "json")
	if err := json.Unmarshal([]byte(out), &drained); err != nil || len(drained.Moved) != 1 || len(drained.Stayed) != 0 {
		t.Errorf("the drain of %s: %s %v", moved.To, out, err)
	}
	r.Atoll("mc", "uncordon", moved.To)
	if _, err := runKubectl(t, later.Kubeconfig, "get", "configmap", "before"); err != nil {
		t.Errorf("through the router of the drained management cluster: %v", err)
	}
	if err := api.DeleteCluster(ctx, client.ClusterID(cluster.ID), client.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	localtest.Eventually(t, 5*time.Minute, func() error {
		left := ""
		for _, management := range []string{moved.From, moved.To} {
			left += r.Kubectl(management, "get", "hostedclusters,nodepools,credentials", "-A", "-o", "name")
		}
		if orphans := r.Atoll("mc", "orphans", "-o", "json"); strings.TrimSpace(orphans) != "[]" || left != "" {
			return fmt.Errorf("left of the cluster: %s, orphans %s", left, orphans)
		}
		return nil
	})
}
