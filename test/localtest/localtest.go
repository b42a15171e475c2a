// Package localtest gives tests a whole region of their own: the built
// binaries, real PostgreSQL, a real broker, real API servers. A region ends
// with its test, and the test fails when anything of it is left. Starting one
// takes 13 s of processor time with the race detector, so tests share one where
// they can: Shared and Restarted.
//
// ATOLL_BIN names the atoll whose `up` and `region` are tested, and so the services
// (scripts/test.sh builds it with the race detector); the other commands are
// bin/atoll's. atoll-kube and kubectl are those of ATOLL_KUBE_BIN's directory.
// It is imported by tests only.
package localtest

import (
	"bytes"
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
	"atoll.dev/internal/quick"
	"atoll.dev/local"
	"atoll.dev/test/testsite"
)

// Region is a region of a test's own.
type Region struct {
	T    testing.TB
	Home string
	Env  map[string]string // what `atoll env` prints
}

var binaries struct {
	once               sync.Once
	atoll, services    string // the commands; the atoll that runs the services
	kubectl            string
	atollErr, otherErr error
}

// Bin finds the programs. With -short, as "make quick" runs tests, it skips the test, which needs them.
func Bin(t testing.TB) (atoll, kubectl string) {
	t.Helper()
	quick.LeavesOut(t, "needs a region")
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

// Services is the program that runs a region's services.
func Services(t testing.TB) string {
	Bin(t)
	return binaries.services
}

// slot holds a region that several tests of a package use one after the other.
type slot struct {
	sync.Mutex
	args      []string // of `up`
	r         *Region
	isStopped bool // a test has stopped the region's processes
}

var shared, restarted slot

// StartRestartedWith sets the arguments of `up` for the region of Restarted. A package calls it before Main.
func StartRestartedWith(args ...string) { restarted.args = args }

// Shared is one region for all tests of a package that leave no trace in it but
// their own works. The package must use Main.
func Shared(t *testing.T) *Region {
	t.Helper()
	return shared.region(t)
}

// Restarted is one running region for all tests of a package that kill its processes or pause them, and end with
// a running region, or with one that Down has stopped. The test after a failed one gets a new region. The package must
// use Main.
func Restarted(t *testing.T) *Region {
	t.Helper()
	r := restarted.forTest(t)
	if restarted.isStopped {
		r.Up()
		restarted.isStopped = false
	}
	return r
}

// Stopped is the region of Restarted without running processes. The test ends with a region that does not run either:
// a start takes 13 s of processor time.
func Stopped(t *testing.T) *Region {
	t.Helper()
	r := restarted.forTest(t)
	if !restarted.isStopped {
		r.Down()
	}
	return r
}

// forTest returns the slot's region, which ends with the test if the test fails.
func (s *slot) forTest(t *testing.T) *Region {
	t.Helper()
	r := s.region(t)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		r.showLogs()
		if err := s.end(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// region returns the slot's region for the test, and starts one when there is none.
func (s *slot) region(t *testing.T) *Region {
	t.Helper()
	Bin(t)
	s.Lock()
	defer s.Unlock()
	if s.r == nil {
		home, err := os.MkdirTemp("", "atoll-e2e-")
		if err != nil {
			t.Fatal(err)
		}
		r := &Region{T: t, Home: home}
		defer func() {
			if s.r == nil { // Up has failed the test
				if err := purge(home); err != nil {
					t.Error(err)
				}
			}
		}()
		r.Up(s.args...)
		s.r = r
	}
	r := *s.r
	r.T = t
	return &r
}

// end stops and deletes the slot's region.
func (s *slot) end() error {
	s.Lock()
	defer s.Unlock()
	if s.r == nil {
		return nil
	}
	home := s.r.Home
	s.r, s.isStopped = nil, false
	return purge(home)
}

// purge stops and deletes the region in home, and returns an error when anything of it is left.
func purge(home string) error {
	if out, err := Command(home, "down", "--purge").CombinedOutput(); err != nil {
		return fmt.Errorf("down --purge: %w\n%s", err, out)
	}
	if left := Processes(home); len(left) > 0 {
		return fmt.Errorf("down left processes: %v", left)
	}
	if _, err := os.Stat(home); err == nil {
		return fmt.Errorf("down --purge left %s", home)
	}
	return nil
}

// Main runs the tests with a configuration directory of their own and then ends the shared regions. args are those of
// `up` for the region of Shared. Use it in TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(localtest.Main(m)) }
func Main(m *testing.M, args ...string) int {
	shared.args = args
	os.Unsetenv("ATOLL_HOME")
	os.Unsetenv("ATOLL_ENDPOINT")
	code := testsite.WithOwnConfig(m.Run)
	if err := errors.Join(shared.end(), restarted.end()); err != nil {
		fmt.Fprintf(os.Stderr, "shared regions: %v\n", err)
		code = 1
	}
	return code
}

// New starts a region for one test. It is stopped and deleted when the test ends.
func New(t *testing.T, args ...string) *Region {
	t.Helper()
	return NewIn(t, func(string) {}, args...)
}

// NewIn is New; prepare may write files into the region's home before it starts.
func NewIn(t *testing.T, prepare func(home string), args ...string) *Region {
	t.Helper()
	r := Undeclared(t)
	prepare(r.Home)
	r.Up(args...)
	return r
}

// Undeclared returns a region that is not started: the test starts it by its declaration. Its home is empty. It is
// stopped and deleted when the test ends.
func Undeclared(t *testing.T) *Region {
	t.Helper()
	Bin(t)
	home, err := os.MkdirTemp("", "atoll-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	r := &Region{T: t, Home: home}
	t.Cleanup(func() {
		if t.Failed() {
			r.showLogs()
		}
		if err := purge(home); err != nil {
			t.Error(err)
		}
	})
	return r
}

// Command is a command in a region, not started.
func Command(home string, args ...string) *exec.Cmd {
	program := binaries.atoll
	if args[0] == "up" || args[0] == "region" {
		program = binaries.services
	}
	cmd := exec.Command(program, append(args, "--home", home)...)
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// Atoll runs a command in the region and returns what it prints.
func (r *Region) Atoll(args ...string) string {
	r.T.Helper()
	out, err := r.Try(args...)
	if err != nil {
		r.T.Fatalf("atoll %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// Try is Atoll, but returns the error of the command.
func (r *Region) Try(args ...string) (string, error) {
	Bin(r.T)
	cmd := Command(r.Home, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// Up starts the region, or goes on with it.
func (r *Region) Up(args ...string) string {
	r.T.Helper()
	out := r.Atoll(append([]string{"up", "--detach"}, args...)...)
	r.Env = map[string]string{}
	for line := range strings.Lines(r.Atoll("env")) {
		k, v, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		r.Env[k] = strings.Trim(v, "'")
	}
	return out
}

// Down stops the processes of Restarted's region. The next test that asks for Restarted starts them again.
func (r *Region) Down() {
	r.T.Helper()
	r.Atoll("down")
	restarted.isStopped = true
}

// Status is the output of `atoll status`.
func (r *Region) Status() local.Status {
	r.T.Helper()
	var s local.Status
	if err := json.Unmarshal([]byte(r.Atoll("status", "-o", "json")), &s); err != nil {
		r.T.Fatal(err)
	}
	return s
}

// Process is one of the region's processes.
func (r *Region) Process(name string) local.ProcessStatus {
	r.T.Helper()
	s := r.Status()
	i := slices.IndexFunc(s.Processes, func(p local.ProcessStatus) bool { return p.Name == name })
	if i < 0 {
		r.T.Fatalf("no process %s in %v", name, s.Processes)
	}
	return s.Processes[i]
}

// API is our own client of the region.
func (r *Region) API() *client.Client {
	r.T.Helper()
	api, err := client.New(client.Options{
		Endpoint: r.Env["ATOLL_ENDPOINT"], CAFile: r.Env["ATOLL_CA"],
		Credentials: client.Credentials{AccessKeyID: r.Env["AWS_ACCESS_KEY_ID"],
			SecretAccessKey: r.Env["AWS_SECRET_ACCESS_KEY"], Region: r.Env["AWS_REGION"]},
	})
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(api.Close)
	return api
}
