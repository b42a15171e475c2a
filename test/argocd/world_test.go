package argocd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// world is a plane with Argo CD, and a repository that it follows.
type world struct {
	t                *testing.T
	dir, bin         string // of everything, and of the programs
	root             string // of Atoll's repository
	kubeconfig, repo string
	environment      []string // of each program
}

// newWorld builds Argo CD and helm, and starts a plane, Redis and Argo CD.
func newWorld(t *testing.T) *world {
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir, bin: filepath.Join(dir, "bin"), root: root, repo: filepath.Join(dir, "repo"),
		kubeconfig: filepath.Join(dir, "plane", "admin.kubeconfig")}
	for _, d := range []string{w.bin, w.repo, filepath.Join(dir, "home"), filepath.Join(dir, "tmp")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.run(".", nil, "go", "build", "-o", filepath.Join(w.bin, "servers"), "./servers")
	w.run("helm", nil, "go", "build", "-o", filepath.Join(w.bin, "helm"), "helm.sh/helm/v4/cmd/helm")
	source := strings.TrimSpace(w.run(".", nil, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/argoproj/argo-cd/v3"))
	for _, script := range []string{"git-verify-wrapper.sh", "gpg-wrapper.sh"} { // the repository server runs them
		text, err := os.ReadFile(filepath.Join(source, "hack", script))
		if err == nil {
			err = os.WriteFile(filepath.Join(w.bin, script), text, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	home := filepath.Join(dir, "home")
	w.environment = append(os.Environ(), "PATH="+w.bin+":"+os.Getenv("PATH"), "HOME="+home, "TMPDIR="+filepath.Join(dir,
		"tmp"), "KUBECONFIG="+w.kubeconfig, "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_AUTHOR_NAME=ann",
		"GIT_AUTHOR_EMAIL=ann@example.com", "GIT_COMMITTER_NAME=ann", "GIT_COMMITTER_EMAIL=ann@example.com",
		"ARGOCD_FAKE_IN_CLUSTER=true", // the cluster of the kubeconfig is the one that Argo CD is in
		// The manifests of Argo CD set these two by timeout.reconciliation of argocd-cm; without them a commit is seen after
		// up to six minutes.
		"ARGOCD_RECONCILIATION_TIMEOUT=10s", "ARGOCD_RECONCILIATION_JITTER=0s",
		"ARGOCD_GPG_ENABLED=false", "ARGOCD_TLS_DATA_PATH="+home, "ARGOCD_SSH_DATA_PATH="+home)

	w.start(filepath.Join(root, "bin/atoll-kube"), "serve", "--data-dir", filepath.Join(dir, "plane"), "--listen",
		w.address(), "--name", "argocd")
	w.await("the plane", func() bool { return w.try("get", "--raw", "/readyz") == nil })
	for _, kind := range []string{"application", "applicationset", "appproject"} {
		w.kubectl("", "apply", "--server-side", "-f", filepath.Join(source, "manifests/crds", kind+"-crd.yaml"))
	}
	w.await("the kinds of Argo CD", func() bool { return w.try("get", "applications,applicationsets,appprojects") == nil })
	w.kubectl(objects, "apply", "-f", "-")

	redis, repository := w.address(), w.address()
	_, redisPort, _ := net.SplitHostPort(redis)
	_, repositoryPort, _ := net.SplitHostPort(repository)
	servers := filepath.Join(w.bin, "servers")
	w.start("redis-server", "--bind", "127.0.0.1", "--port", redisPort, "--save", "", "--appendonly", "no")
	w.start(servers, "argocd-repo-server", "--redis", redis, "--port", repositoryPort, "--metrics-port", w.port(),
		"--disable-tls", "--client-ca-path", "")
	w.start(servers, "argocd-application-controller", "--redis", redis, "--repo-server", repository,
		"--repo-server-plaintext", "--kubeconfig", w.kubeconfig, "--namespace", "argocd", "--metrics-port", w.port())
	w.start(servers, "argocd-applicationset-controller", "--argocd-repo-server", repository, "--repo-server-plaintext",
		"--kubeconfig", w.kubeconfig, "--namespace", "argocd", "--metrics-addr", w.address(), "--probe-addr", w.address(),
		"--webhook-addr", w.address())
	return w
}

// objects are the configuration of Argo CD.
const objects = `
apiVersion: v1
kind: Namespace
metadata: {name: argocd}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: argocd-cm, namespace: argocd, labels: {app.kubernetes.io/part-of: argocd}}
---
apiVersion: v1
kind: Secret
metadata: {name: argocd-secret, namespace: argocd, labels: {app.kubernetes.io/part-of: argocd}}
stringData: {server.secretkey: of-a-test}
---
apiVersion: argoproj.io/v1alpha1
kind: AppProject
metadata: {name: default, namespace: argocd}
spec:
  sourceRepos: ['*']
  destinations: [{namespace: '*', server: '*'}]
  clusterResourceWhitelist: [{group: '*', kind: '*'}]
`

// address returns a free address of loopback.
func (w *world) address() string {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (w *world) port() string {
	_, port, _ := net.SplitHostPort(w.address())
	return port
}

// run runs a program in a directory until its end, and returns its output.
func (w *world) run(dir string, input io.Reader, name string, args ...string) string {
	w.t.Helper()
	var out, failed bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, w.environment, input, &out, &failed
	if err := cmd.Run(); err != nil {
		w.t.Fatalf("%s %v: %v: %s%s", name, args, err, out.String(), failed.String())
	}
	return out.String()
}

// start starts a program, which ends with the test. A test that fails shows the end of what it wrote.
func (w *world) start(name string, args ...string) {
	w.t.Helper()
	log, err := os.CreateTemp(w.dir, filepath.Base(name)+"-")
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = w.dir, w.environment, log, log
	if err := cmd.Start(); err != nil {
		stop()
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // it was killed
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); w.t.Failed() && err == nil {
			w.t.Logf("%s %v:\n%s", name, args[:1], text[max(0, len(text)-4000):])
		}
	})
}

// try runs kubectl.
func (w *world) try(args ...string) error {
	cmd := exec.Command(filepath.Join(w.root, "bin/kubectl"), args...)
	cmd.Env = w.environment
	return cmd.Run()
}

// kubectl runs kubectl and returns its output.
func (w *world) kubectl(input string, args ...string) string {
	w.t.Helper()
	return w.run(w.dir, strings.NewReader(input), filepath.Join(w.root, "bin/kubectl"), args...)
}

// await waits for a condition.
func (w *world) await(what string, holds func() bool) {
	w.t.Helper()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for deadline := time.Now().Add(10 * time.Minute); !holds(); <-ticker.C {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: not within 10 minutes", what)
		}
	}
}

// commit renders the configuration and commits everything. It returns the commit.
func (w *world) commit(message string) string {
	w.t.Helper()
	w.run(w.repo, nil, filepath.Join(w.root, "bin/atoll"), "config", "render")
	w.run(w.repo, nil, "git", "add", ".")
	w.run(w.repo, nil, "git", "commit", "-q", "-m", message)
	return strings.TrimSpace(w.run(w.repo, nil, "git", "rev-parse", "HEAD"))
}

// write writes a file of the repository.
func (w *world) write(name, format string, args ...any) {
	w.t.Helper()
	file := filepath.Join(w.repo, name)
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		err = os.WriteFile(file, fmt.Appendf(nil, format, args...), 0o644)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}
