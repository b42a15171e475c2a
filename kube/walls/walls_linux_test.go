//go:build amd64 || arm64

package walls

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// inside makes the test binary build walls around itself; walls never come down again.
const (
	inside     = "ATOLL_TEST_INSIDE"
	insideView = "ATOLL_TEST_INSIDE_VIEW"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(insideView); dir != "" {
		if err := lookAtView(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if dir := os.Getenv(inside); dir != "" {
		if err := lookAround(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// lookAround builds the walls and tries what they should prevent. Neighbour is a directory beside dir.
func lookAround(dir string) error {
	_, err := net.Interfaces()
	if err != nil {
		return err
	}
	standing, err := Build(Options{Dir: dir})
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(standing, " "))
	if err := os.WriteFile(filepath.Join(dir, "own"), []byte("x"), 0o600); err != nil {
		return fmt.Errorf("a file of its own: %w", err)
	}
	if err := os.Rename(filepath.Join(dir, "own"), filepath.Join(dir, "renamed")); err != nil {
		return fmt.Errorf("a rename of its own: %w", err)
	}
	neighbour := filepath.Join(filepath.Dir(dir), "neighbour")
	_, read := os.ReadFile(filepath.Join(neighbour, "secret"))
	write := os.WriteFile(filepath.Join(neighbour, "new"), nil, 0o600)
	_, list := os.ReadDir(neighbour)
	program := exec.Command("/bin/true").Run()
	environment := fs.ErrPermission
	if parent := os.Getppid(); parent > 1 {
		_, environment = os.ReadFile(fmt.Sprintf("/proc/%d/environ", parent))
	}
	for what, err := range map[string]error{"reading": read, "writing": write, "listing": list,
		"starting a program":                 program,
		"the environment of another process": environment} {
		if !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	if slices.Contains(standing, Calls) {
		if err := tryCalls(); err != nil {
			return err
		}
	}
	if err := syscall.Kill(os.Getppid(), 0); !errors.Is(err, syscall.EPERM) && hasScopes() {
		return fmt.Errorf("a signal to another process: %w", err)
	}
	return nil
}

func TestWallsHold(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"own", "neighbour"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "neighbour", "secret"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), inside+"="+filepath.Join(dir, "own"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		if !slices.Contains(strings.Fields(string(out)), Files) {
			t.Skip("this kernel has no Landlock, or this test binary links C")
		}
		t.Fatalf("%v\n%s", err, out)
	}
}
