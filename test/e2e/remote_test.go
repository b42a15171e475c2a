package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"atoll.dev/client"
	"atoll.dev/plane/planetest"
)

// A cluster that the region did not make, and whose API it cannot reach, joins
// as a person would join it: register, bootstrap, token, agent.
func TestAClusterThatIsNotLocalJoins(t *testing.T) {
	r := sharedRegion(t)
	cluster := planetest.Start(t)
	dir := t.TempDir()
	data, err := os.ReadFile(filepath.Join(r.home, "region.json"))
	if err != nil {
		t.Fatal(err)
	}
	var state struct{ Ports map[string]int }
	if err := json.Unmarshal(data, &state); err != nil {
		t.Fatal(err)
	}
	address := func(port string) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(state.Ports[port])) }
	path := func(name string) string { return filepath.Join(dir, name) }

	r.atoll("mc", "register", "edge-7", "--label", "zone=north")
	r.atoll("mc", "bootstrap", "--kubeconfig", cluster.Config.AdminKubeconfig(), "--out", path("agent.kubeconfig"))
	r.atoll("pki", "token", "edge-7", "--dir", filepath.Join(r.home, "pki"), "--out", path("token"))
	log, err := os.Create(path("log"))
	if err != nil {
		t.Fatal(err)
	}
	agent := exec.Command(binaries.services, "agent", "--consumer-name", "edge-7", "--kubeconfig", path("agent.kubeconfig"),
		"--mqtt", address("mqtt"), "--pki", "https://"+address("pki"), "--ca", r.env["ATOLL_CA"],
		"--identity", path("identity"), "--token-file", path("token"), "--data-dir", path("store"))
	agent.Stdout, agent.Stderr = log, log
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		agent.Process.Signal(os.Interrupt)
		if err := agent.Wait(); err != nil {
			said, _ := os.ReadFile(path("log"))
			t.Errorf("the agent ended with %v:\n%s", err, said)
		}
		r.atoll("mc", "delete", "edge-7")
	})
	if _, err := r.try("mc", "kubeconfig", "edge-7"); err == nil {
		t.Error("the region has a kubeconfig of a cluster that is not its own")
	}
	api := r.api()
	w, _, err := api.ApplyWork(t.Context(), "edge-7", configMapWork("far", map[string]map[string]string{"far": {"a": "b"}}))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, func() error {
		got, err := api.Work(t.Context(), w.ID)
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
	eventually(t, 30*time.Second, func() error {
		if out := r.atoll("mc", "list"); !strings.Contains(out, "edge-7") || strings.Contains(out, "never") {
			return fmt.Errorf("mc list: %s", out)
		}
		return nil
	})
	if _, err := r.try("mc", "delete", "edge-7"); err == nil {
		t.Error("a management cluster with works was deleted")
	}
	if err := api.DeleteWork(t.Context(), w.ID, ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, func() error {
		if _, err := api.Work(t.Context(), w.ID); client.StatusOf(err) != 404 {
			return fmt.Errorf("the work is still there: %v", err)
		}
		return nil
	})
}
