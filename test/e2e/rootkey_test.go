package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/internal/quick"
	"atoll.dev/pki"
	"atoll.dev/test/localtest"
)

// A region whose root's key is elsewhere restarts and enrols. The key comes back for new issuing CAs, and to revoke
// those before: then every process of the region joins again.
func TestI7ARegionGoesOnWithoutTheKeyOfItsRoot(t *testing.T) {
	quick.Slow(t, "runs a region without the key of its root")
	r := localtest.Restarted(t)
	rootKey, file := filepath.Join(t.TempDir(), "root.pem"), filepath.Join(r.Home, "pki", "ca.pem")
	r.Atoll("ca", "offline", "--out", rootKey)
	t.Cleanup(func() {
		data, err := os.ReadFile(rootKey)
		if err == nil {
			err = os.WriteFile(file, data, 0o600)
		}
		if err != nil {
			t.Error(err)
		}
	})
	status := func() (s pki.Status) {
		t.Helper()
		if err := json.Unmarshal([]byte(r.Atoll("ca", "status", "-o", "json")), &s); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(file); err != nil || bytes.Contains(data, []byte("PRIVATE KEY")) ||
			!s.Root.KeyOffline || len(s.Warnings) > 0 {
			t.Errorf("the root's key is in the home, or it is missed: %+v %v", s, err)
		}
		return s
	}
	works := func(name string) {
		t.Helper()
		api := r.API()
		w, _, err := api.ApplyWork(t.Context(), "management-01", localtest.ConfigMapWork(name,
			map[string]map[string]string{name: {"a": "b"}}))
		if err != nil {
			t.Fatal(err)
		}
		localtest.Eventually(t, 3*time.Minute, func() error {
			got, err := api.Work(t.Context(), work.ID(w.ID))
			if err == nil && len(got.Status.Conditions) == 0 {
				err = fmt.Errorf("work %s has no status", name)
			}
			return err
		})
		if err := api.DeleteWork(t.Context(), work.ID(w.ID), ""); err != nil {
			t.Fatal(err)
		}
	}

	r.Atoll("down")
	r.Up()
	works("restarted")
	revoke(t, r, "management-01")
	r.Atoll("mc", "allow", "management-01") // enrols again
	works("enrolled")
	before := status()

	r.Atoll("ca", "issue", "--root-key-file", rootKey)
	works("issued")
	r.Atoll("ca", "issue", "--root-key-file", rootKey, "--revoke", "agents,services")
	r.Atoll("down")
	r.Up()
	works("revoked")
	after := status()
	if after.Root.Fingerprint != before.Root.Fingerprint || len(after.Issuing) != len(pki.Roles) {
		t.Errorf("before %+v, after %+v", before, after)
	}
	for _, i := range after.Issuing {
		for _, old := range before.Issuing {
			if i.Serial == old.Serial {
				t.Errorf("a revoked issuing CA signs: %+v", i)
			}
		}
	}
}
