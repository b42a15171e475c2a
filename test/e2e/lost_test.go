package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/internal/quick"
	"atoll.dev/test/localtest"
)

// An operator gives up a management cluster that is cut off.
func TestI1I9ALostManagementClusterIsGivenUp(t *testing.T) {
	quick.Slow(t, "recovers a cluster of a lost management cluster, two minutes")
	r := localtest.New(t, "--backups", "--management-clusters", "2")
	loseManagementCluster(t, r, func(lost string) {
		localtest.Eventually(t, 5*time.Minute, func() error {
			_, err := r.Try("mc", "lost", lost)
			return err
		})
	})
}

// The policy gives up a management cluster that stays cut off. It waits for five minutes at least, so this test runs on
// request only.
func TestI1I9ThePolicyGivesUpALostManagementCluster(t *testing.T) {
	quick.Slow(t, "waits for the policy, ten minutes")
	r := localtest.New(t, "--backups", "--management-clusters", "4", "--recover-lost-after", "5m")
	loseManagementCluster(t, r, func(lost string) {
		begun := time.Now()
		localtest.Eventually(t, 10*time.Minute, func() error {
			all, err := r.API().ManagementClusters(t.Context())
			if err != nil {
				return err
			}
			for _, m := range all {
				if m.Name == lost && m.Reserved["planes"] == 0 {
					return nil
				}
			}
			return fmt.Errorf("%s still has its cluster", lost)
		})
		t.Logf("the policy gave %s up after %v", lost, time.Since(begun).Round(time.Second))
	})
}

// loseManagementCluster cuts the management cluster of a cluster off and calls giveUp, after which its cluster is
// recovered on another one from its backup. When the lost one is back, its control plane ends and never answers again,
// and the backup stays the other's.
func loseManagementCluster(t *testing.T, r *localtest.Region, giveUp func(lost string)) {
	t.Helper()
	api, ctx := r.API(), t.Context()
	cluster, err := api.CreateCluster(ctx, platform.ClusterRequest{Name: "survives"})
	if err != nil {
		t.Fatal(err)
	}
	id := client.ClusterID(cluster.ID)
	replicas := int32(2)
	if _, err := api.CreateNodePool(ctx, platform.NodePoolRequest{ClusterID: cluster.ID, Name: "workers",
		Spec: &platform.NodePoolSpec{Replicas: &replicas}}); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, api, id)
	// kubectl runs kubectl with a new credential.
	kubectl := func(args ...string) (string, error) {
		made, err := api.CreateCredential(ctx, id, platform.CredentialRequest{ExpirationSeconds: 6 * 3600})
		if err != nil {
			return "", err
		}
		return runKubectl(t, made.Kubeconfig, args...)
	}
	if _, err := kubectl("create", "configmap", "before", "--from-literal=a=b"); err != nil {
		t.Fatal(err)
	}
	written := time.Now()
	localtest.Eventually(t, 2*time.Minute, func() error {
		b, err := api.Backups(ctx, id)
		if err == nil && (b.To == nil || !b.To.After(written)) {
			err = fmt.Errorf("the backups are %+v", b)
		}
		return err
	})

	lost := placeOf(t, r)
	if out, err := r.Try("mc", "lost", lost); err == nil || !strings.Contains(out+err.Error(), "is connected") {
		t.Errorf("giving up a management cluster that is connected: %v %s", err, out)
	}
	// Its processes are paused, not killed: the supervisor would restart them. Its control plane runs on, unreachable.
	signal := func(s syscall.Signal) {
		t.Helper()
		for _, process := range []string{lost + "-agent", lost + "-hosting"} {
			if err := syscall.Kill(r.Process(process).PID, s); err != nil {
				t.Fatal(err)
			}
		}
	}
	signal(syscall.SIGSTOP)
	giveUp(lost)
	awaitReady(t, api, id)
	if out, err := kubectl("get", "configmap", "before", "-o", "name"); err != nil {
		t.Errorf("an acknowledged write is not there: %v %s", err, out)
	}
	localtest.Eventually(t, 3*time.Minute, func() error {
		out, err := kubectl("get", "nodes", "-o", "name")
		if err == nil && strings.Count(out, "node/") != 2 {
			err = fmt.Errorf("nodes %s", out)
		}
		return err
	})
	if _, err := kubectl("create", "configmap", "after", "--from-literal=a=b"); err != nil {
		t.Error(err)
	}

	signal(syscall.SIGCONT)
	localtest.Eventually(t, 5*time.Minute, func() error {
		if left := r.Kubectl(lost, "get", "hostedclusters,nodepools,credentials", "-A", "-o", "name"); left != "" {
			return fmt.Errorf("left on the management cluster that is back: %s", left)
		}
		return nil
	})
	written = time.Now()
	localtest.Eventually(t, 2*time.Minute, func() error { // the recovered plane still has the backup
		b, err := api.Backups(ctx, id)
		if err == nil && (b.To == nil || !b.To.After(written)) {
			err = fmt.Errorf("the backups are %+v", b)
		}
		return err
	})
	for _, name := range []string{"before", "after"} {
		if _, err := kubectl("get", "configmap", name); err != nil {
			t.Error(err)
		}
	}
	if other := placeOf(t, r); other == lost {
		t.Errorf("the cluster is on %s again", other)
	}
}

// placeOf returns the management cluster that has the only HostedCluster of a region.
func placeOf(t *testing.T, r *localtest.Region) string {
	t.Helper()
	all, err := r.API().ManagementClusters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var places []string
	for _, m := range all {
		places = append(places, slices.Repeat([]string{m.Name},
			len(strings.Fields(r.Kubectl(m.Name, "get", "hostedclusters", "-A", "-o", "name"))))...)
	}
	if len(places) != 1 {
		t.Fatalf("the HostedCluster is on %q, want one place", places)
	}
	return places[0]
}
