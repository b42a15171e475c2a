package process_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"atoll.dev/hosting"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/process"
	"atoll.dev/hosting/runtimetest"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
)

var _ hosting.Planes = (*process.Runtime)(nil)

func TestTheRuntimePassesTheSuite(t *testing.T) {
	if testing.Short() {
		t.Skip("needs control planes, which -short leaves out")
	}
	binary, err := planetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	o := process.Options{Dir: filepath.Join(dir, "planes"), Binaries: map[controlplane.Version]string{}}
	for _, v := range runtimetest.Releases { // one program under two names
		o.Binaries[v] = filepath.Join(dir, "atoll-kube-"+string(v))
		if err := os.Symlink(binary, o.Binaries[v]); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { killAll(t, o) })
	runtimetest.Run(t, func(t *testing.T) hosting.Planes {
		r, err := process.New(o)
		if err != nil {
			t.Fatal(err)
		}
		return r
	})
}

// killAll ends the planes that a failed run has left.
func killAll(t *testing.T, o process.Options) {
	r, err := process.New(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range r.List() {
		if pid, ok := plane.Running(r.Dir(id)); ok {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
