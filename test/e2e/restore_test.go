package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/backup/region"
	"atoll.dev/test/localtest"
)

// A region loses its machine: every process, the databases, the certificate authority and all keys. From its backup it
// goes on with everything that was acknowledged; the management cluster, which is elsewhere, has lost nothing and joins
// by the identity that it has.
func TestI1ALostRegionIsRestoredFromItsBackup(t *testing.T) {
	r := localtest.Restarted(t)
	w, _, err := r.API().ApplyWork(t.Context(), "management-01", localtest.ConfigMapWork("restored",
		map[string]map[string]string{"restored": {"a": "b"}}))
	if err != nil {
		t.Fatal(err)
	}
	acknowledged := time.Now()
	localtest.Eventually(t, 3*time.Minute, func() error {
		_, err := r.TryKubectl("management-01", "get", "configmap", "restored")
		return err
	})
	object := r.Kubectl("management-01", "get", "configmap", "restored", "-o", "jsonpath={.metadata.uid}")
	certificate := filepath.Join(r.Home, "management", "management-01", "agent", "identity")
	localtest.Eventually(t, 3*time.Minute, func() error {
		var windows []region.Window
		out := r.Atoll("region", "backups", "--store", filepath.Join(r.Home, "backups", "store.yaml"), "-o", "json")
		if err := json.Unmarshal([]byte(out), &windows); err != nil {
			return err
		}
		if len(windows) == 0 || !windows[len(windows)-1].To.After(acknowledged) {
			return fmt.Errorf("the copies are %v", windows)
		}
		return nil
	})
	loseMachine(t, r)

	if out, err := r.Try("region", "restore", "another"); err == nil || !strings.Contains(err.Error(), "no copy") {
		t.Errorf("restoring a region that the store does not have: %v %s", err, out)
	}
	r.Atoll("region", "restore")
	if out, err := r.Try("region", "restore"); err == nil || !strings.Contains(err.Error(), "holds a region") {
		t.Errorf("restoring over a region: %v %s", err, out)
	}
	r.Up()
	if _, err := r.API().Work(t.Context(), work.ID(w.ID)); err != nil { // with the key pair of before
		t.Errorf("an acknowledged work: %v", err)
	}
	if _, err := os.Stat(certificate); err != nil {
		t.Errorf("the agent's identity: %v", err)
	}
	file := filepath.Join(t.TempDir(), "work.json")
	write(t, file, localtest.ConfigMapWork("later", map[string]map[string]string{"later": {"a": "b"}}))
	out := r.Atoll("work", "apply", "-f", file, "--cluster", "management-01", "--wait")
	if !strings.Contains(out, "Applied") {
		t.Errorf("a work after the restore: %s", out)
	}
	if now := r.Kubectl("management-01", "get", "configmap", "restored", "-o", "jsonpath={.metadata.uid}"); now != object {
		t.Errorf("the object of before was made anew: %s, then %s", object, now)
	}
}

// loseMachine kills the region's processes and removes its files, but for the management cluster's and the backups.
func loseMachine(t *testing.T, r *localtest.Region) {
	for _, p := range r.Status().Processes { // the supervisor is the first
		if !strings.HasPrefix(p.Name, "management-01") && p.PID != 0 {
			localtest.Kill(t, p.PID)
		}
	}
	var state struct {
		Postgres struct{ Dir string }
	}
	text, err := os.ReadFile(filepath.Join(r.Home, "region.json"))
	if err == nil {
		err = json.Unmarshal(text, &state)
	}
	if err != nil || state.Postgres.Dir == "" {
		t.Fatalf("region.json: %v %s", err, text)
	}
	lost := []string{state.Postgres.Dir}
	for _, name := range []string{"region.json", "credentials.json", "ca.pem", "clm.yaml", "pki", "platform", "azure",
		"identities"} {
		lost = append(lost, filepath.Join(r.Home, name))
	}
	for _, path := range lost {
		// PostgreSQL's other processes end by themselves, a moment after the first, and write until then.
		localtest.Eventually(t, 3*time.Minute, func() error { return os.RemoveAll(path) })
	}
}
