package gitrepo

import (
	"context"
	"fmt"
	"regexp"
	"strings"
)

// CheckCheckout returns ErrDirty for a checkout that has changes below the paths that are not committed, or commits
// that are not in head, the newest commit of the branch. The error begins with the file and line of the first
// difference. A bare clone has no checkout, and the error is nil.
func (b Branch) CheckCheckout(ctx context.Context, head string, paths ...string) error {
	bare, err := b.git(ctx, nil, "rev-parse", "--is-bare-repository")
	if err != nil || strings.TrimSpace(string(bare)) == "true" {
		return err
	}
	local, err := b.resolve(ctx, "HEAD")
	if err != nil {
		return err
	}
	changed, err := b.git(ctx, nil, append([]string{"status", "--porcelain", "-z", "--no-renames", "--"},
		fromTop(paths)...)...)
	if err != nil {
		return err
	}
	if first, _, _ := strings.Cut(string(changed), "\x00"); len(first) > 3 {
		at := first[3:] + ":1" // of a file that Git does not know
		if !strings.HasPrefix(first, "??") {
			at = b.lineOf(ctx, first[3:], local)
		}
		return fmt.Errorf("%s: %w: this is not committed; commit and push it first", at, ErrDirty)
	}
	pushed, err := b.IsAncestor(ctx, local, head)
	if err != nil || pushed {
		return err
	}
	at := b.FirstChange(ctx, head+"..."+local, paths...)
	if at == "" {
		at = b.FirstChange(ctx, head+"..."+local)
	}
	if at != "" {
		at += ": "
	}
	return fmt.Errorf("%s%w: the commit %.12s is not in %s of %s; push it, or rebase it on the branch first", at, ErrDirty,
		local, b.Name, b.Remote)
}

// FirstChange returns the file and line, FILE:LINE, of the first difference between two commits, which are A..B, or
// A...B for the changes of B since the last common commit of both. The line is that of B, or of A where B has no such
// file. Without paths any file counts. The result is "" when no file differs, and when git fails.
func (b Branch) FirstChange(ctx context.Context, commits string, paths ...string) string {
	names, err := b.git(ctx, nil, append([]string{"diff", "--name-only", "-z", "--no-renames", "--no-relative",
		"--end-of-options", commits, "--"}, fromTop(paths)...)...)
	first, _, _ := strings.Cut(string(names), "\x00")
	if err != nil || first == "" {
		return ""
	}
	return b.lineOf(ctx, first, commits)
}

var hunk = regexp.MustCompile(`(?m)^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@`)

// lineOf returns FILE:LINE of the first difference of a file, and FILE when it has none that has a line.
func (b Branch) lineOf(ctx context.Context, file, commits string) string {
	diff, err := b.git(ctx, nil, "diff", "--unified=0", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames",
		"--end-of-options", commits, "--", ":(top,literal)"+file)
	found := hunk.FindSubmatch(diff)
	if err != nil || found == nil {
		return file
	}
	line := string(found[2])
	if line == "0" { // the file is not there any more, or begins with what was removed
		line = string(found[1])
	}
	return file + ":" + max(line, "1")
}

// fromTop returns paths as Git takes them literally, from the top of the repository.
func fromTop(paths []string) []string {
	all := make([]string, len(paths))
	for i, name := range paths {
		all[i] = ":(top,literal)" + name
	}
	return all
}
