// Package gitrepo reads a branch of a remote Git repository and adds commits to it, without the files of a checkout.
//
// It runs the program git, so it has the credentials, proxies and keys that git has on this machine. A commit is added
// by comparing and swapping: the remote refuses it unless the branch is still at the commit's parent. So of several
// writers one succeeds, and the others get ErrStale.
//
// It imports nothing of Atoll.
package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

var (
	// ErrStale: the branch is not at the commit's parent. Read it again.
	ErrStale = errors.New("the branch has moved")
	// ErrRefused: the remote refuses the commit, such as by a hook or a protection of the branch. Another try has the
	// same answer.
	ErrRefused = errors.New("the remote refuses the commit")
	// ErrDirty: the checkout has changes that the branch does not have.
	ErrDirty = errors.New("the checkout differs from the branch")
)

// Branch is a branch of a remote repository, seen from a clone on this machine.
type Branch struct {
	Dir    string // of the clone; a checkout, or bare
	Remote string // such as origin
	Name   string // such as main
}

// ref is where Head keeps the branch. It is not the remote-tracking branch of the checkout, which stays as it is.
func (b Branch) ref() string { return "refs/atoll/" + b.Remote + "/" + b.Name }

// Head fetches the branch and returns its newest commit.
func (b Branch) Head(ctx context.Context) (string, error) {
	_, err := b.git(ctx, nil, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--", b.Remote,
		"+refs/heads/"+b.Name+":"+b.ref())
	if err != nil {
		return "", err
	}
	return b.resolve(ctx, b.ref())
}

// Mirror returns a branch of a repository, a directory or a URL, as a bare clone in dir sees it. It creates the clone
// when there is none, and fetches nothing yet.
func Mirror(ctx context.Context, dir, repository, branch string) (Branch, error) {
	b := Branch{Dir: dir, Remote: "origin", Name: branch}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return b, err
	}
	for _, args := range [][]string{
		{"init", "--quiet", "--bare", "--template="},
		{"config", "remote.origin.url", repository},
		{"config", "gc.autoDetach", "false"}, // git leaves no process of its own behind
		{"config", "maintenance.autoDetach", "false"},
	} {
		if _, err := b.git(ctx, nil, args...); err != nil {
			return b, err
		}
	}
	return b, nil
}

// Mark records a commit in the clone under a name, in the place of an earlier one.
func (b Branch) Mark(ctx context.Context, name, commit string) error {
	_, err := b.git(ctx, nil, "update-ref", "refs/atoll/marks/"+name, commit)
	return err
}

// Marked returns the commit that Mark recorded under a name, and "" when there is none.
func (b Branch) Marked(ctx context.Context, name string) (string, error) {
	out, err := b.git(ctx, nil, "for-each-ref", "--format=%(objectname)", "refs/atoll/marks/"+name)
	return strings.TrimSpace(string(out)), err
}

// Subject returns the first line of the message of a commit.
func (b Branch) Subject(ctx context.Context, commit string) (string, error) {
	out, err := b.git(ctx, nil, "log", "-1", "--format=%s", "--end-of-options", commit)
	return strings.TrimSpace(string(out)), err
}

// Between returns the commits that are in the history of a commit and not in that of an earlier one, without the commit
// itself: the oldest first, and of many the newest ones up to a number.
func (b Branch) Between(ctx context.Context, earlier, commit string, atMost int) ([]string, error) {
	out, err := b.git(ctx, nil, "rev-list", "--topo-order", "--reverse", fmt.Sprintf("--max-count=%d", atMost+1),
		commit, "^"+earlier)
	commits := strings.Fields(string(out))
	return commits[:max(len(commits)-1, 0)], err
}

func (b Branch) resolve(ctx context.Context, revision string) (string, error) {
	out, err := b.git(ctx, nil, "rev-parse", "--verify", "--end-of-options", revision+"^{commit}")
	return strings.TrimSpace(string(out)), err
}

// IsAncestor reports whether a commit is in the history of another. A commit that the clone does not have is in no
// history. A shallow clone has a part of the history only: there the answer no is an error.
func (b Branch) IsAncestor(ctx context.Context, ancestor, commit string) (bool, error) {
	_, err := b.git(ctx, nil, "merge-base", "--is-ancestor", ancestor, commit)
	failed, ok := errors.AsType[*exec.ExitError](err)
	if !ok || failed.ExitCode() != 1 && failed.ExitCode() != 128 {
		return err == nil, err
	}
	shallow, err := b.git(ctx, nil, "rev-parse", "--is-shallow-repository")
	if err == nil && strings.TrimSpace(string(shallow)) == "true" {
		err = fmt.Errorf("%s is a shallow clone, which does not have the whole history; run git fetch --unshallow", b.Dir)
	}
	return false, err
}

// Add adds a commit to the branch: parent with some files replaced, or removed where they are nil. It returns the new
// commit. The error is ErrStale when the branch is not at parent any more: then nothing has changed. It is ErrRefused
// when the remote refuses the commit though the branch is at parent.
func (b Branch) Add(ctx context.Context, parent string, files map[string][]byte, message string) (string, error) {
	temporary := fmt.Sprintf("refs/atoll/new/%d-%d", os.Getpid(), time.Now().UnixNano())
	var in bytes.Buffer
	fmt.Fprintf(&in, "commit %s\nmark :1\ncommitter atoll <atoll@localhost> %d +0000\n", temporary, time.Now().Unix())
	fmt.Fprintf(&in, "data %d\n%s\nfrom %s\n", len(message), message, parent)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if data := files[name]; data != nil {
			fmt.Fprintf(&in, "M 100644 inline %q\ndata %d\n%s\n", name, len(data), data)
		} else {
			fmt.Fprintf(&in, "D %q\n", name)
		}
	}
	// The commit needs no reference: fast-import makes none when its stream removes the reference again.
	fmt.Fprintf(&in, "reset %s\nfrom %040d\n\nget-mark :1\n", temporary, 0)
	printed, err := b.git(ctx, in.Bytes(), "fast-import", "--quiet", "--force")
	if err != nil {
		return "", err
	}
	commit := strings.TrimSpace(string(printed))
	target := "refs/heads/" + b.Name
	out, err := b.git(ctx, nil, "push", "--porcelain", "--no-verify", "--force-with-lease="+target+":"+parent, "--",
		b.Remote, commit+":"+target)
	if err == nil {
		return commit, nil
	}
	text := strings.TrimSpace(string(out))
	refusal := fmt.Errorf("adding a commit to %s of %s: %w: %s", b.Name, b.Remote, err, text)
	// The text of a refusal is the same for a writer that was slower and for a remote that takes no commit. Only the
	// branch shows which it is.
	switch head, err := b.Head(ctx); {
	case err != nil:
		return "", refusal
	case head == commit: // the answer of the remote was lost
		return commit, nil
	case head != parent:
		return "", fmt.Errorf("%w: %s", ErrStale, text)
	case strings.Contains(text, "[remote rejected]") && !isLocked(text):
		return "", fmt.Errorf("%w: %w", ErrRefused, refusal)
	}
	return "", refusal
}

// isLocked reports whether the remote could not lock the branch: another writer holds the lock, or was killed with it.
func isLocked(text string) bool {
	return slices.ContainsFunc([]string{"failed to update ref", "cannot lock ref", "failed to lock"},
		func(part string) bool { return strings.Contains(text, part) })
}
