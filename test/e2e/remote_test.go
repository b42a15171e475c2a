package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/client/remote"
	"atoll.dev/internal/quick"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/localtest"
)

// A cluster that the region did not create, and whose API it cannot reach, joins by the steps of an
// operator: register, bootstrap, token, agent.
func TestARemoteClusterJoins(t *testing.T) {
	quick.Slow(t, "joins a management cluster to a region of its own")
	r := localtest.Shared(t)
	cluster := planetest.Start(t)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := os.Symlink(localtest.Services(t), path("atoll")); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(path("log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	// join runs what `atoll mc join-token` prints, word for word.
	join := func() (stop func()) {
		script := strings.Replace(r.Atoll("mc", "join-token", "edge-7"), "\natoll agent", "\nexec atoll agent", 1)
		agent := exec.Command("sh", "-ec", script)
		agent.Dir, agent.Env, agent.Stdout, agent.Stderr = dir, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH")),
			log, log
		if err := agent.Start(); err != nil {
			t.Fatal(err)
		}
		return sync.OnceFunc(func() {
			agent.Process.Signal(os.Interrupt)
			if err := agent.Wait(); err != nil {
				output, _ := os.ReadFile(path("log"))
				t.Errorf("the agent ended with %v:\n%s", err, output)
			}
		})
	}
	r.Atoll("mc", "register", "edge-7", "--label", "zone=north")
	r.Atoll("mc", "bootstrap", "--kubeconfig", cluster.Config.AdminKubeconfig(), "--out", path("agent.kubeconfig"))
	stop := join()
	t.Cleanup(func() {
		stop()
		r.Atoll("mc", "delete", "edge-7")
	})
	if _, err := r.Try("mc", "kubeconfig", "edge-7"); err == nil {
		t.Error("the region has a kubeconfig of a cluster that is not its own")
	}
	api := r.API()
	w, _, err := api.ApplyWork(t.Context(), "edge-7", localtest.ConfigMapWork("far", map[string]map[string]string{
		"far": {"a": "b"}}))
	if err != nil {
		t.Fatal(err)
	}
	localtest.Eventually(t, 3*time.Minute, func() error {
		got, err := api.Work(t.Context(), work.ID(w.ID))
		if err != nil {
			return err
		}
		for _, c := range got.Status.Conditions {
			if c.Type == "Applied" && c.Status == "True" {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", got.Status.Conditions)
	})
	localtest.Eventually(t, 3*time.Minute, func() error {
		if out := r.Atoll("mc", "list"); !strings.Contains(out, "edge-7") || strings.Contains(out, "never") {
			return fmt.Errorf("mc list: %s", out)
		}
		return nil
	})

	// Revoked, it is out within seconds, and a start does not bring it back.
	revoke(t, r, "edge-7")
	if out, err := r.Try("mc", "join-token", "edge-7"); err == nil || !strings.Contains(out+err.Error(),
		"atoll mc allow edge-7") {
		t.Errorf("a token for a revoked cluster: %v %s", err, out)
	}
	other, _, err := api.ApplyWork(t.Context(), "edge-7", localtest.ConfigMapWork("later",
		map[string]map[string]string{"later": {"a": "b"}}))
	if err != nil {
		t.Fatal(err)
	}
	// The next start, with a new token, finds the old key of no use.
	stop()
	if got, err := api.Work(t.Context(), work.ID(other.ID)); err != nil || len(got.Status.Conditions) > 0 {
		t.Errorf("a revoked cluster reports: %+v %v", got.Status.Conditions, err)
	}
	r.Atoll("mc", "allow", "edge-7")
	stop = join()
	localtest.Eventually(t, 3*time.Minute, func() error {
		got, err := api.Work(t.Context(), work.ID(other.ID))
		if err == nil && len(got.Status.Conditions) == 0 {
			err = errors.New("it has not come back")
		}
		return err
	})
	if err := api.DeleteWork(t.Context(), work.ID(other.ID), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Try("mc", "delete", "edge-7"); err == nil {
		t.Error("a management cluster with works was deleted")
	}
	if err := api.DeleteWork(t.Context(), work.ID(w.ID), ""); err != nil {
		t.Fatal(err)
	}
	localtest.Eventually(t, 3*time.Minute, func() error {
		for _, id := range []string{w.ID, other.ID} {
			if _, err := api.Work(t.Context(), work.ID(id)); remote.StatusOf(err) != 404 {
				return fmt.Errorf("the work is still there: %v", err)
			}
		}
		return nil
	})
}

// revoke revokes a cluster and returns when the broker has cut its agent off,
// for which it has ten seconds.
func revoke(t *testing.T, r *localtest.Region, cluster string) {
	t.Helper()
	cuts := func() int { return strings.Count(r.Atoll("logs", "broker"), "connections cut off") }
	before := cuts()
	r.Atoll("mc", "revoke", cluster, "--reason", "a test")
	begun := time.Now()
	localtest.Eventually(t, 3*time.Minute, func() error {
		if cuts() == before {
			return errors.New("the broker has cut nobody off")
		}
		return nil
	})
	t.Logf("%s was cut off within %s", cluster, time.Since(begun))
}

// A cluster of this machine is no exception: the supervisor does not bring a
// revoked one back, and `mc allow` is enough, because it may make the token.
func TestI7ALocalClusterIsRevokedAndRejoins(t *testing.T) {
	r := localtest.Shared(t)
	revoke(t, r, "management-01")
	api := r.API()
	w, _, err := api.ApplyWork(t.Context(), "management-01", localtest.ConfigMapWork("revoked",
		map[string]map[string]string{"revoked": {"a": "b"}}))
	if err != nil {
		t.Fatal(err)
	}
	if out := r.Atoll("mc", "allow", "management-01"); !strings.Contains(out, "its agent was restarted") {
		t.Errorf("mc allow: %s", out)
	}
	localtest.Eventually(t, 3*time.Minute, func() error {
		got, err := api.Work(t.Context(), work.ID(w.ID))
		if err == nil && len(got.Status.Conditions) == 0 {
			err = errors.New("it has not come back")
		}
		return err
	})
	if err := api.DeleteWork(t.Context(), work.ID(w.ID), ""); err != nil {
		t.Fatal(err)
	}
	localtest.Eventually(t, 3*time.Minute, func() error {
		if _, err := api.Work(t.Context(), work.ID(w.ID)); remote.StatusOf(err) != 404 {
			return fmt.Errorf("the work is still there: %v", err)
		}
		return nil
	})
}
