// Package planetest gives tests real planes: a plane that all tests of a process
// share, or planes of their own. A plane ends with the test process, also when that
// process is killed.
package planetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"atoll.dev/internal/freeport"
	"atoll.dev/internal/quick"
	"atoll.dev/plane"
)

// startTimeout bounds the start of a plane on a busy machine.
const startTimeout = 5 * time.Minute

var shared struct {
	sync.Mutex
	plane *plane.Process
	dir   string
	err   error
}

// Main runs the tests and then stops the shared plane; use it in TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(planetest.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.plane != nil {
		_ = shared.plane.Kill()
	}
	if shared.dir != "" {
		_ = os.RemoveAll(shared.dir)
	}
	return code
}

// Shared returns the plane that all tests of this process use. A test must give its
// objects names that no other test uses. The package must use Main.
func Shared(t testing.TB) *plane.Process {
	t.Helper()
	skipShort(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.plane == nil && shared.err == nil {
		shared.dir, shared.err = os.MkdirTemp("", "atoll-plane-")
		if shared.err == nil {
			shared.plane, shared.err = Launch(shared.dir, FreeAddress(t))
		}
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.plane
}

// Start returns a plane of the test's own, which ends with the test.
func Start(t testing.TB) *plane.Process {
	t.Helper()
	skipShort(t)
	p, err := Launch(t.TempDir(), FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	return p
}

// skipShort skips a test that needs a control plane when tests run with -short, as "make quick" runs them.
func skipShort(t testing.TB) {
	t.Helper()
	quick.LeavesOut(t, "needs a control plane")
}

// Restart starts a plane again that was killed, on its data and address.
func Restart(t testing.TB, old *plane.Process) *plane.Process {
	t.Helper()
	p, err := Launch(old.Config.Dir, old.Config.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	return p
}

// Launch starts a plane and waits until it is ready. The plane ends with this
// process.
func Launch(dir, address string) (*plane.Process, error) {
	binary, err := Binary()
	if err != nil {
		return nil, err
	}
	c := plane.Config{Name: "test", Dir: dir, Binary: binary, Address: address, SimulatedNodes: true}
	var p *plane.Process
	started := make(chan error, 1)
	go func() {
		// The kernel ends the plane when the thread that started it ends, so
		// that thread is kept for as long as the plane.
		runtime.LockOSThread()
		var err error
		p, err = plane.Start(context.Background(), c, plane.Options{DieWithParent: true})
		started <- err
		if err == nil {
			select {}
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := p.Wait(ctx); err != nil {
		_ = p.Kill()
		return nil, err
	}
	return p, nil
}

// Binary finds atoll-kube: $ATOLL_KUBE_BIN, or bin/atoll-kube of this
// repository.
func Binary() (string, error) {
	path := os.Getenv("ATOLL_KUBE_BIN")
	if path == "" {
		_, file, _, _ := runtime.Caller(0)
		path = filepath.Join(filepath.Dir(file), "..", "..", "bin", "atoll-kube")
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("tests need atoll-kube: run \"make build\", or set ATOLL_KUBE_BIN: %w", err)
	}
	return path, nil
}

// FreeAddress returns a loopback address on which nothing listens. The port is none of those that the system gives to
// outgoing connections: it stays free until the plane listens, and while a killed plane is started again.
func FreeAddress(t testing.TB) string {
	t.Helper()
	address, err := freeport.Address()
	if err != nil {
		t.Fatal(err)
	}
	return address
}
