package operator

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
)

// repository is a bare repository, remote, and a clone of it with a checkout of the branch main.
type repository struct {
	t             *testing.T
	remote, clone string // directories
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	for _, name := range []string{"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"} { // a hook of git has them
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("GIT_CONFIG_SYSTEM", os.DevNull)
	for _, who := range []string{"AUTHOR", "COMMITTER"} {
		t.Setenv("GIT_"+who+"_NAME", "ann")
		t.Setenv("GIT_"+who+"_EMAIL", "ann@example.com")
	}
	dir := t.TempDir()
	r := &repository{t, filepath.Join(dir, "remote"), filepath.Join(dir, "clone")}
	r.git(dir, "init", "-q", "--bare", "-b", "main", "remote")
	r.git(dir, "clone", "-q", r.remote, "clone")
	r.git(r.clone, "checkout", "-q", "-b", "main")
	return r
}

// git runs git in a directory.
func (r *repository) git(at string, args ...string) string {
	r.t.Helper()
	out, err := exec.Command("git", append([]string{"-C", at}, args...)...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// write writes a file of the checkout.
func (r *repository) write(name, text string) {
	r.t.Helper()
	file := filepath.Join(r.clone, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// commit commits the checkout.
func (r *repository) commit(message string) {
	r.t.Helper()
	r.git(r.clone, "add", ".")
	r.git(r.clone, "commit", "-q", "-m", message)
}

// push pushes the checkout's commits.
func (r *repository) push(args ...string) {
	r.t.Helper()
	r.git(r.clone, append([]string{"push", "-q"}, append(args, "origin", "main")...)...)
}

// execute runs a command of the CLI and returns its output.
func execute(ctx context.Context, command func(*terminal.Session) *cobra.Command, session terminal.Session,
	args ...string) (string, error) {
	var out bytes.Buffer
	session.Out, session.Err = &out, &out
	cmd := command(&session)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}
