package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
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

// isFullHash reports whether a revision is a whole hash, by SHA-1 or SHA-256. Git refuses such a name for a branch.
func isFullHash(revision string) bool {
	return hashForm.MatchString(revision) && (len(revision) == 40 || len(revision) == 64)
}

// Resolve returns the commit of a tag or a branch of the remote, or of a hash, which may be abbreviated. A tag counts
// before a branch, and both before a hash. The error is ErrNoRevision when there is none.
func (b Branch) Resolve(ctx context.Context, revision string) (string, error) {
	_, commit, err := b.remoteCommit(ctx, revision)
	if err == nil && commit == "" {
		commit, err = b.commitOfHash(ctx, revision)
	}
	if err == nil && commit == "" {
		err = fmt.Errorf("%w %s: not in %s, and no commit in %s; push it, or run git fetch", ErrNoRevision, revision,
			b.Remote, b.Dir)
	}
	return commit, err
}

// remoteCommit returns the commit of a tag or a branch of the remote, with its reference. Both are "" when the remote
// has none of that name.
func (b Branch) remoteCommit(ctx context.Context, revision string) (reference, commit string, err error) {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	tag, branch := "refs/tags/"+revision, "refs/heads/"+revision
	listed, err := b.git(ctx, nil, "ls-remote", "--", b.Remote, tag, tag+"^{}", branch)
	if err != nil {
		return "", "", err
	}
	commits := map[string]string{}
	for line := range strings.Lines(string(listed)) {
		commit, name, _ := strings.Cut(strings.TrimSpace(line), "\t")
		commits[name] = commit
	}
	for _, name := range []string{tag + "^{}", tag, branch} { // the first is the commit of an annotated tag
		if commit := commits[name]; commit != "" {
			return strings.TrimSuffix(name, "^{}"), commit, nil
		}
	}
	return "", "", nil
}

// commitOfHash returns the commit of the clone that a hash names, which may be abbreviated. It is "" when the clone has
// none, or several. A branch whose name looks like a hash does not count.
func (b Branch) commitOfHash(ctx context.Context, hash string) (string, error) {
	if !hashForm.MatchString(hash) {
		return "", nil
	}
	listed, err := b.git(ctx, nil, "rev-parse", "--disambiguate="+hash)
	if err != nil {
		return "", err
	}
	var objects strings.Builder
	for object := range strings.FieldsSeq(string(listed)) {
		fmt.Fprintln(&objects, object+"^{commit}")
	}
	checked, err := b.git(ctx, []byte(objects.String()), "cat-file", "--batch-check=%(objectname)")
	if err != nil {
		return "", err
	}
	var commits []string
	for line := range strings.Lines(string(checked)) {
		if fields := strings.Fields(line); len(fields) == 1 { // another object is "missing"
			commits = append(commits, fields[0])
		}
	}
	slices.Sort(commits)
	if commits = slices.Compact(commits); len(commits) != 1 {
		return "", nil
	}
	return commits[0], nil
}
