package gitrepo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

var (
	// ErrNoDirectory: the revision does not have the directory.
	ErrNoDirectory = errors.New("the revision does not have the directory")
	// ErrNoRevision: neither a branch, nor a tag, nor a commit has the name.
	ErrNoRevision = errors.New("no branch, tag or commit")
)

// AtRevision returns the files of a directory of a checkout as the commit of a revision has them. The error is
// ErrNoDirectory when the revision does not have the directory.
func AtRevision(ctx context.Context, dir, revision string) (fs.FS, error) {
	b := Branch{Dir: dir}
	commit, err := b.resolve(ctx, revision)
	if err != nil {
		return nil, fmt.Errorf("reading the revision %s: %w", revision, err)
	}
	prefix, err := b.git(ctx, nil, "rev-parse", "--show-prefix")
	if err != nil {
		return nil, fmt.Errorf("reading the revision %s: %w", revision, err)
	}
	folder := path.Clean(strings.TrimSpace(string(prefix)) + ".")
	if folder != "." {
		if _, err := b.git(ctx, nil, "cat-file", "-e", commit+":"+folder); err != nil {
			return nil, fmt.Errorf("%s in the revision %s: %w", folder, revision, ErrNoDirectory)
		}
	}
	return b.Tree(ctx, commit, folder)
}

// hashForm is the form of a commit, which may be abbreviated.
var hashForm = regexp.MustCompile(`^[0-9a-f]{4,64}$`)

// Resolve returns the commit of a tag or a branch of the remote, or of a hash, which may be abbreviated. A tag counts
// before a branch, and both before a hash. The error is ErrNoRevision when there is none.
func (b Branch) Resolve(ctx context.Context, revision string) (string, error) {
	tag, branch := "refs/tags/"+revision, "refs/heads/"+revision
	listed, err := b.git(ctx, nil, "ls-remote", "--", b.Remote, tag, tag+"^{}", branch)
	if err != nil {
		return "", err
	}
	commits := map[string]string{}
	for line := range strings.Lines(string(listed)) {
		commit, name, _ := strings.Cut(strings.TrimSpace(line), "\t")
		commits[name] = commit
	}
	for _, name := range []string{tag + "^{}", tag, branch} { // the first is the commit of an annotated tag
		if commit := commits[name]; commit != "" {
			return commit, nil
		}
	}
	if hashForm.MatchString(revision) {
		if commit, err := b.resolve(ctx, revision); err == nil {
			return commit, nil
		}
	}
	return "", fmt.Errorf("%w %s: not in %s, and no commit in %s; push it, or run git fetch", ErrNoRevision, revision,
		b.Remote, b.Dir)
}

// PinnedTree returns the files at and below some paths in the commit of a revision: a tag, a branch, or a hash. The
// error is fs.ErrNotExist when the clone does not have the commit. It asks the remote, if there is one, only for a name
// that the clone does not have; a remote that does not answer has no such name.
func (b Branch) PinnedTree(ctx context.Context, revision string, paths []string) (fs.FS, error) {
	commit, err := b.pinnedCommit(ctx, revision)
	switch {
	case err != nil:
		return nil, err
	case commit == "":
		return nil, fmt.Errorf("the revision %s in %s: %w", revision, b.Dir, fs.ErrNotExist)
	}
	return b.Tree(ctx, commit, ".", paths...)
}

// pinnedCommit returns the commit of a revision, and "" when the clone does not have it.
func (b Branch) pinnedCommit(ctx context.Context, revision string) (string, error) {
	remote := cmp.Or(b.Remote, "origin")
	names := []string{"refs/tags/" + revision, "refs/remotes/" + remote + "/" + revision, "refs/heads/" + revision}
	if hashForm.MatchString(revision) {
		names = append(names, revision)
	}
	for _, name := range names {
		if commit, err := b.resolve(ctx, name); err == nil {
			return commit, nil
		}
	}
	isFullHash := hashForm.MatchString(revision) && len(revision) >= 40
	if b.Remote != "" && !isFullHash {
		if commit, err := b.Resolve(ctx, revision); err == nil {
			if _, err := b.resolve(ctx, commit); err == nil {
				return commit, nil
			}
		}
	}
	return "", ctx.Err()
}
