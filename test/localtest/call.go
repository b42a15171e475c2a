package localtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"atoll.dev/test/testsite"
)

// Curl makes a signed request with Debian's curl and returns status, headers and body.
func (r *Region) Curl(path string, args ...string) (status int, headers, body string) {
	r.T.Helper()
	head := filepath.Join(r.T.TempDir(), "head")
	args = append([]string{
		"-sS", "--max-time", "120", "-D", head, "--cacert", r.Env["ATOLL_CA"],
		"--aws-sigv4", "aws:amz:" + r.Env["AWS_REGION"] + ":execute-api",
		"--user", r.Env["AWS_ACCESS_KEY_ID"] + ":" + r.Env["AWS_SECRET_ACCESS_KEY"],
		"-w", "\n%{http_code}", r.Env["ATOLL_ENDPOINT"] + path,
	}, args...)
	out, err := exec.Command("curl", args...).Output()
	if err != nil {
		r.T.Fatalf("curl %s: %v", path, err)
	}
	text := string(out)
	cut := strings.LastIndexByte(text, '\n')
	fmt.Sscan(text[cut+1:], &status)
	h, _ := os.ReadFile(head)
	return status, string(h), text[:cut]
}

// Kubectl runs kubectl as the administrator of a management cluster.
func (r *Region) Kubectl(cluster string, args ...string) string {
	r.T.Helper()
	out, err := r.TryKubectl(cluster, args...)
	if err != nil {
		r.T.Fatalf("kubectl %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// TryKubectl is Kubectl, but returns the error of kubectl.
func (r *Region) TryKubectl(cluster string, args ...string) (string, error) {
	_, kubectl := Bin(r.T)
	file := filepath.Join(r.T.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(r.Atoll("mc", "kubeconfig", cluster)), 0o600); err != nil {
		r.T.Fatal(err)
	}
	cmd := exec.Command(kubectl, append([]string{"--kubeconfig", file}, args...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, errs.String())
	}
	return string(out), err
}

// ConfigMapWork is a ManifestWork of ConfigMaps in the namespace default.
func ConfigMapWork(name string, configMaps map[string]map[string]string) json.RawMessage {
	var manifests []any
	for cm, data := range configMaps {
		manifests = append(manifests, map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": cm, "namespace": "default"},
			"data": data,
		})
	}
	data, _ := json.Marshal(map[string]any{
		"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork", "metadata": map[string]any{
			"name": name},
		"spec": map[string]any{"workload": map[string]any{"manifests": manifests}},
	})
	return data
}

// Eventually calls f until it returns nil. After limit it fails the test. It pauses as testsite.EventuallyWithin does.
func Eventually(t testing.TB, limit time.Duration, f func() error) {
	t.Helper()
	testsite.EventuallyWithin(t, "the region", limit, f)
}

// Processes lists the pids of a home's processes.
func Processes(home string) []string {
	var found []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		if bytes.Contains(cmdline, []byte(home)) && !bytes.Contains(cmdline, []byte("down")) {
			found = append(found, filepath.Base(dir)+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return found
}

// showLogs logs the ends of all logs.
func (r *Region) showLogs() {
	out, _ := Command(r.Home, "logs", "--tail", "15").CombinedOutput()
	r.T.Logf("logs:\n%s", out)
	out, _ = Command(r.Home, "status").CombinedOutput()
	r.T.Logf("status:\n%s", out)
}

// Kill ends a process at once, if it has not ended by itself since the test looked for it.
func Kill(t testing.TB, pid int) {
	t.Helper()
	if pid <= 0 { // to kill(2) it is a group of processes, such as that of the tests
		t.Fatalf("kill: the process does not run (pid %d)", pid)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatalf("kill %d: %v", pid, err)
	}
}

// Seed returns the random choices of a test, by testsite.Seed.
func Seed(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(testsite.Seed(t), 0))
}
