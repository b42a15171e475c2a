// Package e2e tests a whole region from the outside: the built binaries, real
// PostgreSQL, a real broker, real API servers, and clients that are not ours
// where there are any. It has no code of its own; nothing imports it.
//
// ATOLL_BIN names the atoll whose `up` is tested, and so the services
// (scripts/test.sh builds it with the race detector); the other commands are
// bin/atoll's. atoll-kube and kubectl are those of ATOLL_KUBE_BIN's directory.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"atoll.dev/client"
	"atoll.dev/region"
)

// testRegion is a region of a test's own.
type testRegion struct {
	t    testing.TB
	home string
	env  map[string]string // what `atoll env` prints
}

var binaries struct {
	once               sync.Once
	atoll, services    string // the commands; the atoll that runs the services
	kubectl            string
	atollErr, otherErr error
}

func bin(t testing.TB) (atoll, kubectl string) {
	t.Helper()
	binaries.once.Do(func() {
		kube := os.Getenv("ATOLL_KUBE_BIN")
		if kube == "" {
			kube, _ = filepath.Abs("../../bin/atoll-kube")
		}
		binaries.atoll, _ = filepath.Abs("../../bin/atoll")
		if binaries.services = os.Getenv("ATOLL_BIN"); binaries.services == "" {
			binaries.services = binaries.atoll
		}
		_, err := os.Stat(binaries.services)
		_, binaries.atollErr = os.Stat(binaries.atoll)
		binaries.atollErr = errors.Join(err, binaries.atollErr)
		_, binaries.otherErr = os.Stat(kube)
		os.Setenv("ATOLL_KUBE_BIN", kube)
		binaries.kubectl = filepath.Join(filepath.Dir(kube), "kubectl")
	})
	if binaries.atollErr != nil || binaries.otherErr != nil {
		t.Fatalf("build first, with `make build`: %v %v", binaries.atollErr, binaries.otherErr)
	}
	return binaries.atoll, binaries.kubectl
}

// shared is one region for all tests that leave no trace in it but their own works.
var shared struct {
	sync.Mutex
	r *testRegion
}

func sharedRegion(t *testing.T) *testRegion {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.r == nil {
		home, err := os.MkdirTemp("", "atoll-e2e-")
		if err != nil {
			t.Fatal(err)
		}
		r := &testRegion{t: t, home: home}
		r.up()
		shared.r = r
	}
	r := *shared.r
	r.t = t
	return &r
}

func TestMain(m *testing.M) {
	os.Unsetenv("ATOLL_HOME")
	os.Unsetenv("ATOLL_ENDPOINT")
	code := m.Run()
	if r := shared.r; r != nil {
		if out, err := command(r.home, "down", "--purge").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "shared region: %v\n%s", err, out)
			code = 1
		}
	}
	os.Exit(code)
}

// newRegion starts a region for one test, which goes with it.
func newRegion(t *testing.T, args ...string) *testRegion {
	t.Helper()
	return newRegionIn(t, func(string) {}, args...)
}

// newRegionIn is newRegion with a home that was prepared.
func newRegionIn(t *testing.T, prepare func(home string), args ...string) *testRegion {
	t.Helper()
	home, err := os.MkdirTemp("", "atoll-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	prepare(home)
	r := &testRegion{t: t, home: home}
	t.Cleanup(func() {
		if t.Failed() {
			r.showLogs()
		}
		if out, err := command(home, "down", "--purge").CombinedOutput(); err != nil {
			t.Errorf("down --purge: %v\n%s", err, out)
		}
		if left := processes(home); len(left) > 0 {
			t.Errorf("down left processes: %v", left)
		}
		if _, err := os.Stat(home); err == nil {
			t.Errorf("down --purge left %s", home)
		}
	})
	r.up(args...)
	return r
}

func command(home string, args ...string) *exec.Cmd {
	program := binaries.atoll
	if args[0] == "up" {
		program = binaries.services
	}
	cmd := exec.Command(program, append(args, "--home", home)...)
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// atoll runs a command in the region and returns what it prints.
func (r *testRegion) atoll(args ...string) string {
	r.t.Helper()
	out, err := r.try(args...)
	if err != nil {
		r.t.Fatalf("atoll %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func (r *testRegion) try(args ...string) (string, error) {
	bin(r.t)
	cmd := command(r.home, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

func (r *testRegion) up(args ...string) string {
	r.t.Helper()
	out := r.atoll(append([]string{"up", "--detach"}, args...)...)
	r.env = map[string]string{}
	for line := range strings.Lines(r.atoll("env")) {
		k, v, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		r.env[k] = strings.Trim(v, "'")
	}
	return out
}

func (r *testRegion) status() region.Status {
	r.t.Helper()
	var s region.Status
	if err := json.Unmarshal([]byte(r.atoll("status", "-o", "json")), &s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *testRegion) process(name string) region.ProcessStatus {
	r.t.Helper()
	s := r.status()
	i := slices.IndexFunc(s.Processes, func(p region.ProcessStatus) bool { return p.Name == name })
	if i < 0 {
		r.t.Fatalf("no process %s in %v", name, s.Processes)
	}
	return s.Processes[i]
}

// api is our own client of the region.
func (r *testRegion) api() *client.Platform {
	r.t.Helper()
	api, err := client.NewPlatform(client.PlatformOptions{
		Endpoint: r.env["ATOLL_ENDPOINT"], CAFile: r.env["ATOLL_CA"],
		Credentials: client.Credentials{AccessKeyID: r.env["AWS_ACCESS_KEY_ID"], SecretAccessKey: r.env["AWS_SECRET_ACCESS_KEY"], Region: r.env["AWS_REGION"]},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(api.Close)
	return api
}

// curl makes a signed request with Debian's curl and returns status, headers and body.
func (r *testRegion) curl(path string, args ...string) (status int, headers, body string) {
	r.t.Helper()
	head := filepath.Join(r.t.TempDir(), "head")
	args = append([]string{
		"-sS", "--max-time", "20", "-D", head, "--cacert", r.env["ATOLL_CA"],
		"--aws-sigv4", "aws:amz:" + r.env["AWS_REGION"] + ":execute-api",
		"--user", r.env["AWS_ACCESS_KEY_ID"] + ":" + r.env["AWS_SECRET_ACCESS_KEY"],
		"-w", "\n%{http_code}", r.env["ATOLL_ENDPOINT"] + path,
	}, args...)
	out, err := exec.Command("curl", args...).Output()
	if err != nil {
		r.t.Fatalf("curl %s: %v", path, err)
	}
	text := string(out)
	cut := strings.LastIndexByte(text, '\n')
	fmt.Sscan(text[cut+1:], &status)
	h, _ := os.ReadFile(head)
	return status, string(h), text[:cut]
}

// kubectl runs kubectl as the administrator of a management cluster.
func (r *testRegion) kubectl(cluster string, args ...string) string {
	r.t.Helper()
	out, err := r.tryKubectl(cluster, args...)
	if err != nil {
		r.t.Fatalf("kubectl %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func (r *testRegion) tryKubectl(cluster string, args ...string) (string, error) {
	_, kubectl := bin(r.t)
	file := filepath.Join(r.t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(r.atoll("mc", "kubeconfig", cluster)), 0o600); err != nil {
		r.t.Fatal(err)
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

// configMapWork is a ManifestWork of ConfigMaps in the namespace default.
func configMapWork(name string, configMaps map[string]map[string]string) json.RawMessage {
	var manifests []any
	for cm, data := range configMaps {
		manifests = append(manifests, map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": cm, "namespace": "default"}, "data": data,
		})
	}
	data, _ := json.Marshal(map[string]any{
		"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"workload": map[string]any{"manifests": manifests}},
	})
	return data
}

// eventually calls f until it returns nil, with the test's patience.
func eventually(t testing.TB, patience time.Duration, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after %s: %v", patience, err)
		case <-tick.C:
		}
	}
}

// processes lists the pids of a home's processes.
func processes(home string) []string {
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

func (r *testRegion) showLogs() {
	out, _ := command(r.home, "logs", "--tail", "15").CombinedOutput()
	r.t.Logf("logs:\n%s", out)
	out, _ = command(r.home, "status").CombinedOutput()
	r.t.Logf("status:\n%s", out)
}
