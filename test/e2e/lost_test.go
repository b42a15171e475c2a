package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/test/localtest"
)

// An operator gives up a management cluster that is cut off: its cluster is recovered on another one from its backup.
// When the lost one is back, its control plane ends and never answers again, and the backup stays the other's.
func TestI1I9ALostManagementClusterIsGivenUp(t *testing.T) {
	r := localtest.New(t, "--backups", "--management-clusters", "2")
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

	lost, other := "management-01", "management-02"
	if r.Kubectl(lost, "get", "hostedclusters", "-A", "-o", "name") == "" {
		lost, other = other, lost
	}
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
	localtest.Eventually(t, 5*time.Minute, func() error {
		_, err := r.Try("mc", "lost", lost)
		return err
	})
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
	if have := r.Kubectl(other, "get", "hostedclusters", "-A", "-o", "name"); strings.Count(have, "/") != 1 {
		t.Errorf("on %s: %s", other, have)
	}
}
