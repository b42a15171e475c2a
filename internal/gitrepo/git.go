package gitrepo

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	gitLimit  = 10 * time.Minute // for one command, which may fetch a large repository
	listLimit = 30 * time.Second // for a remote to list references, which needs no more than an answer
	gitGrace  = 10 * time.Second // for a command to remove its locks when it is stopped
)

// git runs git in the clone and returns its output. It never asks for a password.
func (b Branch) git(ctx context.Context, input []byte, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, gitLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", b.Dir}, args...)...)
	cmd.Env = append(environment(), "GIT_TERMINAL_PROMPT=0", "SSH_ASKPASS_REQUIRE=never", "GIT_OPTIONAL_LOCKS=0",
		"LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // ssh has no terminal to ask for a password
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = gitGrace
	cmd.Stdin = bytes.NewReader(input)
	var text bytes.Buffer
	cmd.Stderr = &text
	out, err := cmd.Output()
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	if err != nil {
		return out, fmt.Errorf("git %s in %s: %w: %s", args[0], b.Dir, err, strings.TrimSpace(text.String()))
	}
	return out, nil
}

// environment returns the environment without the variables that name another repository than the clone: git sets them
// for its hooks.
func environment() []string {
	names := []string{"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY",
		"GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX"}
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains(names, name)
	})
}
