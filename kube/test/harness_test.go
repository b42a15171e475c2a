package test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// binary returns the path of atoll-kube. A missing binary is a failure: these tests are all there is about it.
func binary(t *testing.T) string {
	t.Helper()
	path := os.Getenv("ATOLL_KUBE_BIN")
	if path == "" {
		path = filepath.Join("..", "..", "bin", "atoll-kube")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("atoll-kube is not built (%v): run kube/build.sh, or set ATOLL_KUBE_BIN", err)
	}
	return path
}

// plane is one running "atoll-kube serve".
type plane struct {
	t      *testing.T
	dir    string
	listen string
	cmd    *exec.Cmd
	log    *bytes.Buffer
	exited chan struct{}
}

// start runs a plane and does not wait for it. The process ends with the test, and with the test
// process even if that is killed.
func start(t *testing.T, dir, listen string, args ...string) *plane {
	t.Helper()
	p := &plane{t: t, dir: dir, listen: listen, log: new(bytes.Buffer), exited: make(chan struct{})}
	p.cmd = exec.Command(binary(t), append([]string{"serve", "--data-dir", dir, "--listen", listen}, args...)...)
	p.cmd.Stderr = p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("log of the plane in %s:\n%s", dir, p.log)
		}
	})
	return p
}

// ready is what a plane says in DIR/ready.
type ready struct {
	PID     int    `json:"pid"`
	Address string `json:"address"`
	StartMS int64  `json:"start_ms"`
	Version string `json:"version"`
}

// startReady runs a plane and waits until it says that it is ready.
func startReady(t *testing.T, dir, listen string, args ...string) (*plane, ready) {
	t.Helper()
	p := start(t, dir, listen, args...)
	var r ready
	p.eventually("ready", func() error {
		select {
		case <-p.exited:
			t.Fatalf("the plane ended: %v", p.cmd.ProcessState)
		default:
		}
		content, err := os.ReadFile(filepath.Join(dir, "ready"))
		if err != nil {
			return err
		}
		if err := json.Unmarshal(content, &r); err != nil {
			t.Fatal(err)
		}
		if r.PID != p.cmd.Process.Pid {
			return fmt.Errorf("a stale file, of process %d", r.PID)
		}
		return nil
	})
	return p, r
}

// cpu returns the processor time that the process has used so far, which unlike the time that passed
// does not depend on what else the machine does.
func (p *plane) cpu() time.Duration {
	p.t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(content), ") ")
	var user, system time.Duration
	fields := strings.Fields(rest)
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		p.t.Fatal(err)
	}
	return (user + system) * 10 * time.Millisecond // Linux counts in hundredths of a second for programs
}

// kill ends the process as a crash would.
func (p *plane) kill() {
	p.cmd.Process.Kill()
	<-p.exited
}

// hangLimit bounds each wait. Only a hang exceeds it, on a machine under any load.
const hangLimit = 5 * time.Minute

// stop asks the process to end and returns its exit code and how long it took.
func (p *plane) stop() (int, time.Duration) {
	p.t.Helper()
	began := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	return p.wait(hangLimit), time.Since(began)
}

// wait waits for the process to end and returns its exit code.
func (p *plane) wait(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		p.t.Fatalf("still running after %v", limit)
		return 0
	}
}

// complaint waits for the process to fail and returns the last line on its standard error.
func (p *plane) complaint() string {
	p.t.Helper()
	if code := p.wait(hangLimit); code != 1 {
		p.t.Fatalf("exit code %d, want 1", code)
	}
	if _, err := os.Stat(filepath.Join(p.dir, "ready")); err == nil {
		p.t.Error("a plane that failed to start says that it is ready")
	}
	lines := strings.Split(strings.TrimSpace(p.log.String()), "\n")
	return lines[len(lines)-1]
}

func (p *plane) config() *rest.Config {
	p.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.dir, "admin.kubeconfig"))
	if err != nil {
		p.t.Fatal(err)
	}
	config.QPS = -1
	return config
}

func (p *plane) client() *kubernetes.Clientset {
	p.t.Helper()
	client, err := kubernetes.NewForConfig(p.config())
	if err != nil {
		p.t.Fatal(err)
	}
	return client
}

// eventually tries until try succeeds.
func (p *plane) eventually(what string, try func() error) {
	p.t.Helper()
	deadline := time.After(hangLimit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			p.t.Fatalf("waited too long for %s: %v", what, err)
		}
	}
}

// address returns a loopback address that nobody listens on. Its port is none of those that the system gives to
// outgoing connections: it stays free until a plane listens, and between two starts of a plane.
func address(t *testing.T) string {
	t.Helper()
	var err error
	for range 1000 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 12000+rand.IntN(18000))); err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatalf("no port is free: %v", err)
	return ""
}

// dataDir returns a directory for a plane that is there no more after the test.
func dataDir(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "plane")
}

func missing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

var background = context.Background()
