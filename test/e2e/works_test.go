package e2e

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/client/remote"
	"atoll.dev/internal/pgtest"
	"atoll.dev/local"
	"atoll.dev/test/localtest"
)

func TestASignedPostBecomesAConfigMapWithStatus(t *testing.T) {
	r := localtest.Shared(t)
	body, _ := json.Marshal(map[string]any{"cluster_id": "management-01", "data": localtest.ConfigMapWork("road",
		map[string]map[string]string{"road": {"k": "v"}})})
	status, headers, answer := r.Curl("/prod/api/v0/work", "-X", "POST", "-d", string(body))
	if status != 201 {
		t.Fatalf("POST /work: %d %s", status, answer)
	}
	var created struct{ ID, Kind, Href, ClusterID, Name string }
	if err := json.Unmarshal([]byte(strings.ReplaceAll(answer, "cluster_id", "clusterid")), &created); err != nil {
		t.Fatal(err)
	}
	if created.Kind != "ManifestWork" || created.Href != "/api/v0/work/"+created.ID ||
		created.ClusterID != "management-01" || created.Name != "road" {
		t.Errorf("POST /work answered %s", answer)
	}
	if !strings.Contains(strings.ToLower(headers), "\netag: ") {
		t.Errorf("no ETag in:\n%s", headers)
	}
	localtest.Eventually(t, 3*time.Minute, func() error {
		_, _, list := r.Curl("/prod/api/v0/resource_bundles")
		var bundles struct {
			Items []struct {
				ID     string
				Status struct {
					ResourceStatus []struct {
						Conditions []struct{ Type, Status string }
					}
				}
			}
		}
		if err := json.Unmarshal([]byte(list), &bundles); err != nil {
			return err
		}
		for _, b := range bundles.Items {
			for _, m := range b.Status.ResourceStatus {
				for _, c := range m.Conditions {
					if b.ID == created.ID && c.Type == "Applied" && c.Status == "True" {
						return nil
					}
				}
			}
		}
		return fmt.Errorf("not applied: %s", list)
	})
	if got := r.Kubectl("management-01", "get", "configmap", "road", "-o", "jsonpath={.data.k}"); got != "v" {
		t.Errorf("the ConfigMap has k=%q", got)
	}
}

func TestApplyingTheSameFileTwiceChangesNothing(t *testing.T) {
	r := localtest.Shared(t)
	file := filepath.Join(t.TempDir(), "work.json")
	write(t, file, localtest.ConfigMapWork("twice", map[string]map[string]string{"twice": {"n": "1"}}))
	if out := r.Atoll("work", "apply", "-f", file, "--cluster", "management-01", "--wait"); !strings.Contains(
		out, "created") || !strings.Contains(out, "Applied") {
		t.Errorf("first apply: %s", out)
	}
	version := r.Kubectl("management-01", "get", "configmap", "twice", "-o", "jsonpath={.metadata.resourceVersion}")
	if out := r.Atoll("work", "apply", "-f", file, "--cluster", "management-01", "--wait"); !strings.Contains(
		out, "unchanged") || !strings.Contains(out, "generation 1") {
		t.Errorf("second apply: %s", out)
	}
	if again := r.Kubectl("management-01", "get", "configmap", "twice", "-o",
		"jsonpath={.metadata.resourceVersion}"); again != version {
		t.Errorf("the second apply wrote the ConfigMap: %s, then %s", version, again)
	}
	write(t, file, localtest.ConfigMapWork("twice", map[string]map[string]string{"twice": {"n": "2"}}))
	if out := r.Atoll("work", "apply", "-f", file, "--cluster", "management-01", "--wait"); !strings.Contains(
		out, "changed") || !strings.Contains(out, "generation 2") {
		t.Errorf("third apply: %s", out)
	}
	if got := r.Kubectl("management-01", "get", "configmap", "twice", "-o", "jsonpath={.data.n}"); got != "2" {
		t.Errorf("after the change n=%q", got)
	}
}

func TestI9ADeletedWorkLeavesNoObject(t *testing.T) {
	r := localtest.Shared(t)
	api := r.API()
	w, _, err := api.ApplyWork(t.Context(), "management-01", localtest.ConfigMapWork("goes",
		map[string]map[string]string{"goes": {"a": "b"}}))
	if err != nil {
		t.Fatal(err)
	}
	localtest.Eventually(t, 3*time.Minute, func() error {
		_, err := r.TryKubectl("management-01", "get", "configmap",
			"goes")
		return err
	})
	if out := r.Atoll("work", "delete", w.ID, "--wait"); !strings.Contains(out, "gone") {
		t.Errorf("delete: %s", out)
	}
	if out := r.Kubectl("management-01", "get", "configmap,appliedmanifestwork", "--ignore-not-found", "-o",
		"name"); strings.Contains(out, "goes") || strings.Contains(out, w.ID) {
		t.Errorf("left on the management cluster: %s", out)
	}
	if _, err := api.Work(t.Context(), work.ID(w.ID)); remote.StatusOf(err) != 404 {
		t.Errorf("the work is still known: %v", err)
	}
}

func TestARefusedManifestDelaysNoOther(t *testing.T) {
	r := localtest.Shared(t)
	w, _, err := r.API().ApplyWork(t.Context(), "management-01", json.RawMessage(`{
		"apiVersion":"work.open-cluster-management.io/v1","kind":"ManifestWork","metadata":{"name":"half"},
		"spec":{"workload":{"manifests":[
			{"apiVersion":"v1","kind":"Service","metadata":{"name":"half-bad","namespace":"default"},"spec":{"ports":[{"port":99999}]}},
			{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"half-good","namespace":"default"},"data":{"k":"v"}}]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	localtest.Eventually(t, 3*time.Minute, func() error {
		got, err := r.API().Work(t.Context(), work.ID(w.ID))
		if err != nil {
			return err
		}
		applied := map[string]string{}
		for _, m := range got.Status.ResourceStatus.Manifests {
			for _, c := range m.Conditions {
				if c.Type == "Applied" {
					applied[m.ResourceMeta.Name] = string(c.Status) + " " + c.Message
				}
			}
		}
		if !strings.HasPrefix(applied["half-good"], "True") {
			return fmt.Errorf("conditions: %v", applied)
		}
		if bad := applied["half-bad"]; !strings.HasPrefix(bad, "False") || !strings.Contains(bad, "65535") {
			return fmt.Errorf("the refused manifest's condition does not carry the server's message: %q", bad)
		}
		return nil
	})
	if out := r.Atoll("work", "why", w.ID); !strings.Contains(out, "last error") {
		t.Errorf("why does not show the error: %s", out)
	}
}

func TestWhyShowsTheProgressOfAWork(t *testing.T) {
	r := localtest.Shared(t)
	w, _, err := r.API().ApplyWork(t.Context(), "management-01", localtest.ConfigMapWork("staged",
		map[string]map[string]string{"staged": {"a": "b"}}))
	if err != nil {
		t.Fatal(err)
	}
	localtest.Eventually(t, 3*time.Minute, func() error {
		var why struct {
			Stages []struct {
				Stage string
				At    *time.Time
			}
			Attempts int
		}
		if err := json.Unmarshal([]byte(r.Atoll("work", "why", w.ID, "-o", "json")), &why); err != nil {
			t.Fatal(err)
		}
		var before time.Time
		for _, s := range why.Stages {
			if s.At == nil {
				return fmt.Errorf("stage %s has no time: %+v", s.Stage, why)
			}
			if s.Stage == "sent" && why.Attempts > 1 {
				continue // the time of the last attempt, which the answer to an earlier one may precede
			}
			if s.At.Before(before.Add(-time.Millisecond)) {
				return fmt.Errorf("stage %s is before the one before it: %+v", s.Stage, why)
			}
			before = *s.At
		}
		return nil
	})
}

// The region's own side of the home has nothing by which to reach a management
// cluster's API, nor do its processes get the path of anything that has.
func TestTheRegionHoldsNoKubeconfig(t *testing.T) {
	r := localtest.Shared(t)
	err := filepath.WalkDir(r.Home, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if d.IsDir() && path == filepath.Join(r.Home, "management") {
			return fs.SkipDir
		}
		if !d.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err == nil && (strings.Contains(string(data), "current-context:") || strings.Contains(string(data),
			"client-key-data:")) {
			t.Errorf("%s is a kubeconfig", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pki", "broker", "maestro", "clm", "platform"} {
		pid := r.Process(name).PID
		for _, file := range []string{"cmdline", "environ"} {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(data), filepath.Join(r.Home, "management")) ||
				strings.Contains(strings.ToLower(string(data)), "kubeconfig") {
				t.Errorf("%s knows of a management cluster's files: %q", name, data)
			}
		}
	}
}

// I11: no process list shows a secret.
func TestI11NoSecretInTheProcessListOrTheLogs(t *testing.T) {
	r := localtest.Shared(t)
	secret := r.Env["AWS_SECRET_ACCESS_KEY"]
	r.Curl("/prod/api/v0/management_clusters")
	for _, p := range r.Status().Processes {
		for _, file := range []string{"cmdline", "environ"} {
			data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.PID, file))
			if strings.Contains(string(data), secret) {
				t.Errorf("%s shows the secret key in %s", p.Name, file)
			}
		}
	}
	logs, _ := filepath.Glob(filepath.Join(r.Home, "logs", "*"))
	if len(logs) < 5 {
		t.Fatalf("only %d logs", len(logs))
	}
	for _, log := range logs {
		data, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), secret) {
			t.Errorf("%s has the secret key", log)
		}
		if strings.Contains(string(data), "PRIVATE KEY") {
			t.Errorf("%s has a private key", log)
		}
	}
}

// I11: whoever reads the databases finds no Secret of a work, no secret of a key pair and no key.
func TestI11NoSecretInTheDatabases(t *testing.T) {
	r := localtest.Shared(t)
	const value = "correct-horse-battery-staple"
	encoded := base64.StdEncoding.EncodeToString([]byte(value))
	work := `{"cluster_id":"management-01","data":{"apiVersion":"work.open-cluster-management.io/v1",` +
		`"kind":"ManifestWork","metadata":{"name":"sealed"},"spec":{"workload":{"manifests":[{` +
		`"apiVersion":"v1","kind":"Secret","metadata":` +
		`{"name":"sealed","namespace":"default"},"data":{"password":"` + encoded + `"}}]}}}}`
	if status, _, answer := r.Curl("/prod/api/v0/work", "-X", "POST", "-d", work); status != 201 {
		t.Fatalf("POST /work: %d %s", status, answer)
	}
	localtest.Eventually(t, 3*time.Minute, func() error {
		got, err := r.TryKubectl("management-01", "get", "secret", "sealed", "-o", "jsonpath={.data.password}")
		if err != nil || got != encoded {
			return fmt.Errorf("the Secret has %q: %w", got, err)
		}
		return nil
	})
	databases, err := local.Home{Dir: r.Home}.Databases()
	if err != nil {
		t.Fatal(err)
	}
	for name, dsn := range databases {
		dump := pgtest.Dump(t, dsn)
		if len(dump) < 1000 {
			t.Errorf("the dump of %s has only %d bytes", name, len(dump))
		}
		for _, secret := range []string{value, encoded, r.Env["AWS_SECRET_ACCESS_KEY"], "PRIVATE KEY"} {
			if at := strings.Index(dump, secret); at >= 0 {
				t.Errorf("the database %s has a secret: %s", name, dump[max(0, at-200):at+10])
			}
		}
	}
}

func write(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
