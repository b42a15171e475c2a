package test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// startCPU bounds the processor time of a start, which is what it consists of; README.md has the
// figures of a quiet machine.
const startCPU = 4 * time.Second

// stopLimit bounds an orderly stop: a second on an idle machine, and what a busy machine adds. Whoever runs a plane
// kills it after 10 s (hosting/process), but a test must not fail because the machine pauses.
const stopLimit = time.Minute

func TestPlaneStartsTwiceOnTheSameData(t *testing.T) {
	dir, listen := dataDir(t), address(t)
	p, r := startReady(t, dir, listen, "--name", "twice", "--external-host", "api.example.org")
	t.Logf("first start: %d ms, %v of processor time", r.StartMS, p.cpu())
	if used := p.cpu(); used > startCPU {
		t.Errorf("first start used %v of processor time, allowed %v", used, startCPU)
	}
	if r.Address != listen || r.Version != "v1.36.3" {
		t.Errorf("ready says %+v", r)
	}
	for file, mode := range map[string]os.FileMode{".": 0o700, "admin.kubeconfig": 0o600, "pki/ca.key": 0o600, "pki/service-account.key": 0o600} {
		info, err := os.Stat(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode {
			t.Errorf("%s has mode %v, want %v", file, info.Mode().Perm(), mode)
		}
	}
	for _, name := range []string{"default", "kube-system"} {
		if _, err := p.client().CoreV1().Namespaces().Get(background, name, metav1.GetOptions{}); err != nil {
			t.Errorf("ready without namespace %s: %v", name, err)
		}
	}
	ca, err := os.ReadFile(filepath.Join(dir, "pki/ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if code, took := p.stop(); code != 0 || took > stopLimit {
		t.Errorf("SIGTERM: exit code %d after %v", code, took)
	}
	if !missing(filepath.Join(dir, "ready")) {
		t.Error("a stopped plane says that it is ready")
	}

	p, r = startReady(t, dir, listen, "--name", "twice")
	t.Logf("second start: %d ms, %v of processor time", r.StartMS, p.cpu())
	if used := p.cpu(); used > startCPU {
		t.Errorf("second start used %v of processor time, allowed %v", used, startCPU)
	}
	again, err := os.ReadFile(filepath.Join(dir, "pki/ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if string(again) != string(ca) {
		t.Error("the second start made another authority")
	}
}

func (p *plane) hosts(t *testing.T) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.config().CAData)
	for _, name := range []string{
		"127.0.0.1", "::1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local", "10.50.0.1", "api.example.org", "192.0.2.7",
	} {
		conn, err := tls.Dial("tcp", p.listen, &tls.Config{RootCAs: roots, ServerName: name})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		conn.Close()
	}
}

func (p *plane) anonymous(t *testing.T) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	for path, want := range map[string]int{
		"/readyz": 200, "/livez": 200, "/healthz": 200, "/readyz/etcd": 401,
		"/version": 401, "/api": 401, "/metrics": 401, "/openapi/v2": 401, "/api/v1/namespaces": 401,
	} {
		response, err := client.Get("https://" + p.listen + path)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("anonymous GET %s: %d, want %d", path, response.StatusCode, want)
		}
	}
}

func TestAcknowledgedWritesSurviveAKill(t *testing.T) {
	dir, listen := dataDir(t), address(t)
	p, _ := startReady(t, dir, listen)
	const count = 50
	client := p.client()
	for i := range count {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("kept-%d", i)}}
		if _, err := client.CoreV1().ConfigMaps("default").Create(background, object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	p.kill()
	p, _ = startReady(t, dir, listen)
	client = p.client()
	for i := range count {
		if _, err := client.CoreV1().ConfigMaps("default").Get(background, fmt.Sprintf("kept-%d", i), metav1.GetOptions{}); err != nil {
			t.Errorf("acknowledged before the kill: %v", err)
		}
	}
}

func TestPlaneStopsWhileItStarts(t *testing.T) {
	for _, after := range []time.Duration{50 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			dir, listen := dataDir(t), address(t)
			p := start(t, dir, listen)
			<-time.After(after)
			if code, took := p.stop(); (code != 0 && code != -1) || took > stopLimit { // -1: before the signal was caught
				t.Errorf("exit code %d after %v", code, took)
			}
			startReady(t, dir, listen)
		})
	}
}

func TestKilledFirstStartsLeaveAUsableDirectory(t *testing.T) {
	dir, listen := dataDir(t), address(t)
	for _, after := range []time.Duration{20, 40, 60, 100, 200, 400, 600} {
		p := start(t, dir, listen)
		<-time.After(after * time.Millisecond)
		p.kill()
	}
	startReady(t, dir, listen)
}

func TestTakenPortIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	line := start(t, dataDir(t), l.Addr().String()).complaint()
	if !strings.Contains(line, l.Addr().String()) || !strings.Contains(line, "in use") {
		t.Errorf("complaint %q", line)
	}
}

func TestDirectoryInUseIsRefused(t *testing.T) {
	dir := dataDir(t)
	p, _ := startReady(t, dir, address(t))
	code, second := run(t, "serve", "--data-dir", dir, "--listen", address(t))
	if code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if !strings.Contains(second, "in use by process "+fmt.Sprint(p.cmd.Process.Pid)) {
		t.Errorf("complaint %q", second)
	}
	if missing(filepath.Join(dir, "ready")) {
		t.Error("the second process removed the first one's ready file")
	}
	if _, err := p.client().CoreV1().Namespaces().Get(background, "default", metav1.GetOptions{}); err != nil {
		t.Errorf("the first plane suffered: %v", err)
	}
}

func TestUnusableDirectoryIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	line := start(t, filepath.Join(file, "plane"), address(t)).complaint()
	if !strings.Contains(line, "data directory") {
		t.Errorf("complaint %q", line)
	}
}

func TestLongDirectoriesWork(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("a", 100), strings.Repeat("b", 100))
	startReady(t, dir, address(t))
}

func TestDamagedDataIsRefused(t *testing.T) {
	dir, listen := dataDir(t), address(t)
	p, _ := startReady(t, dir, listen)
	p.stop()
	for _, damage := range []struct {
		name, file string
		do         func(path string) error
	}{
		{"database overwritten", "etcd/member/snap/db", overwrite},
		{"database cut short", "etcd/member/snap/db", cut},
		{"log overwritten", "etcd/member/wal/*.wal", overwrite},
		{"authority overwritten", "pki/ca.crt", overwrite},
		{"authority's key lost", "pki/ca.key", os.Remove},
		{"serving certificate overwritten", "pki/serving.pem", overwrite},
		{"token key cut short", "pki/service-account.key", cut},
	} {
		t.Run(damage.name, func(t *testing.T) {
			copied := dataDir(t)
			if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			files, err := filepath.Glob(filepath.Join(copied, damage.file))
			if err != nil || len(files) == 0 {
				t.Fatalf("no %s: %v", damage.file, err)
			}
			for _, file := range files {
				if err := damage.do(file); err != nil {
					t.Fatal(err)
				}
			}
			line := start(t, copied, address(t)).complaint()
			if !strings.HasPrefix(line, "atoll-kube: ") || !strings.Contains(line, "damaged") {
				t.Errorf("complaint %q", line)
			}
		})
	}
}

func TestWrongCommandLinesAreRefused(t *testing.T) {
	for _, args := range [][]string{
		{"--listen", "127.0.0.1:26000"},
		{"--data-dir", "x"},
		{"--data-dir", "x", "--listen", "127.0.0.1"},
		{"--data-dir", "x", "--listen", "localhost:26000"},
		{"--data-dir", "x", "--listen", "127.0.0.1:0"},
		{"--data-dir", "x", "--listen", "127.0.0.1:26000", "--service-cidr", "10"},
		{"--data-dir", "x", "--listen", "127.0.0.1:26000", "more"},
		{"--unknown"},
	} {
		code, line := run(t, append([]string{"serve"}, args...)...)
		if code != 2 || line == "" {
			t.Errorf("%q: exit code %d, %q", args, code, line)
		}
	}
}

func overwrite(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(strings.Repeat("x", int(min(info.Size(), 1<<20)))), 0o600)
}

func cut(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.Truncate(path, min(info.Size()/3, 20<<10)) // a database keeps unused space at its end
}
