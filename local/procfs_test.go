package local

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The kernel shows an empty or cut environment of a process that executes a program: one read in ten of this process,
// which does nothing else. "atoll down" left a customer's plane that hosting had started just then.
func TestTheMarkShowsWhileAProcessExecutesAProgram(t *testing.T) {
	file := filepath.Join(t.TempDir(), "again")
	if err := os.WriteFile(file, []byte("#!/bin/sh\nexec \"$0\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(file)
	cmd.Env = []string{markVariable + "=a-home/sleeper"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	for range 2000 {
		if env := environment(cmd.Process.Pid); !bytes.Contains(env, []byte(cmd.Env[0])) {
			t.Fatalf("the environment is %q", env)
		}
	}
}

func TestAnEmptyEnvironmentIsRead(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "300")
	cmd.Env = []string{} // nil would be that of the test
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if env := environment(cmd.Process.Pid); env != nil {
		t.Errorf("the environment is %q", env)
	}
	if env := environment(os.Getpid()); len(env) == 0 {
		t.Error("the test has no environment")
	}
}
