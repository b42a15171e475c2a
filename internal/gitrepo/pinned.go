package gitrepo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
)

// PinnedTree returns the files at and below some paths in the commit of a revision: a tag, a branch, or a hash. A tag
// or a branch is that of the remote at this moment: the clone may be older. PinnedTree fetches a commit that the clone
// does not have, and changes no reference. A remote that does not answer, and a Branch without a remote, leave the tags
// and the remote-tracking branches of the clone.
//
// note continues the sentence "the revision is". It is "" when the files are those of the remote, it has the commit
// when they are those of the clone, and it has the reason when files is nil: neither the remote nor the clone has the
// commit. The error is one of reading; another try may succeed.
func (b Branch) PinnedTree(ctx context.Context, revision string, paths []string) (files fs.FS, note string, err error) {
	commit, note, err := b.pinnedCommit(ctx, revision)
	switch {
	case isAnswer(err): // such as: there is no repository
		return nil, notChecked(err.Error()), nil
	case err != nil || commit == "":
		return nil, note, err
	}
	files, err = b.Tree(ctx, commit, ".", paths...)
	return files, note, err
}

// isAnswer reports whether git has ended by itself with an error, or is not installed. A git process that was killed
// is no answer.
func isAnswer(err error) bool {
	failed, is := errors.AsType[*exec.ExitError](err)
	return is && failed.ExitCode() > 0 || errors.Is(err, exec.ErrNotFound)
}

// notChecked returns the note for a commit that neither the remote nor the clone has.
func notChecked(reason string) string { return "not checked: " + oneLine(reason) }

// oneLine returns a text, such as an error of git, on one line.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// pinnedCommit returns the commit of a revision, and fetches it if the clone does not have it. It is "" when neither
// the remote nor the clone has it.
func (b Branch) pinnedCommit(ctx context.Context, revision string) (commit, note string, err error) {
	if isFullHash(revision) {
		if commit, err = b.commitOfHash(ctx, revision); err != nil || commit != "" {
			return commit, "", err
		}
	}
	if b.Remote == "" {
		return b.clonedCommit(ctx, revision, "no remote is asked")
	}
	reference, commit, err := b.remoteCommit(ctx, revision)
	if ctx.Err() != nil {
		return "", "", ctx.Err()
	}
	if err != nil {
		return b.clonedCommit(ctx, revision, "the remote does not answer: "+err.Error())
	}
	if commit == "" {
		if commit, err = b.commitOfHash(ctx, revision); err != nil || commit != "" {
			return commit, "", err
		}
		if !isFullHash(revision) {
			return "", notChecked(fmt.Sprintf("%s has no such tag or branch, and the clone no such commit; push it, or run "+
				"git fetch", b.Remote)), nil
		}
		reference, commit = revision, revision
	}
	return b.fetchedCommit(ctx, reference, commit)
}

// clonedCommit returns the commit of a tag, a remote-tracking branch or a hash of the clone. reason is why the remote
// was not used.
func (b Branch) clonedCommit(ctx context.Context, revision, reason string) (commit, note string, err error) {
	names := []string{"refs/tags/" + revision, "refs/remotes/" + cmp.Or(b.Remote, "origin") + "/" + revision}
	listed, err := b.git(ctx, nil, append([]string{"for-each-ref", "--format=%(refname)"}, names...)...)
	if err != nil {
		return "", "", err
	}
	for _, name := range names {
		if commit == "" && strings.Contains("\n"+string(listed), "\n"+name+"\n") {
			commit, err = b.resolve(ctx, name)
		}
	}
	if err == nil && commit == "" {
		commit, err = b.commitOfHash(ctx, revision)
	}
	switch {
	case err != nil:
		return "", "", err
	case commit == "":
		return "", notChecked("it is not in this clone, and " + reason + "; push it, or run git fetch"), nil
	case isFullHash(revision):
		return commit, "", nil
	}
	return commit, fmt.Sprintf("checked at the clone's commit %.12s, since %s", commit, oneLine(reason)), nil
}

// fetchedCommit returns a commit that a reference of the remote has, and fetches it if the clone does not have it.
func (b Branch) fetchedCommit(ctx context.Context, reference, commit string) (fetched, note string, err error) {
	if fetched, err = b.commitOfHash(ctx, commit); err != nil || fetched != "" {
		return fetched, "", err
	}
	_, err = b.git(ctx, nil, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--", b.Remote, reference)
	if ctx.Err() != nil {
		return "", "", ctx.Err()
	}
	if err != nil {
		return "", notChecked(err.Error()), nil
	}
	if fetched, err = b.commitOfHash(ctx, commit); err == nil && fetched == "" {
		note = notChecked(fmt.Sprintf("%s of %s has moved from the commit %.12s meanwhile", reference, b.Remote, commit))
	}
	return fetched, note, err
}
