package gitops

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path"
	"strings"
)

// ErrNoTree: the revision does not have the directory.
var ErrNoTree = errors.New("the revision does not have the directory")

// AtRevision returns the files of a directory as they are in a revision of the Git
// repository that the directory is in. It runs the program git, and changes nothing in
// the checkout. The error is ErrNoTree when the revision does not have the directory.
func AtRevision(ctx context.Context, dir, revision string) (fs.FS, error) {
	at := dir
	git := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, "git", append([]string{"-C", at}, args...)...)
		var text bytes.Buffer
		cmd.Stderr = &text
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("git %s in %s: %w: %s", args[0], at, err, strings.TrimSpace(text.String()))
		}
		return out, nil
	}
	commit, err := git("rev-parse", "--verify", "--end-of-options", revision+"^{commit}")
	if err != nil {
		return nil, fmt.Errorf("reading the revision %s: %w", revision, err)
	}
	prefix, err := git("rev-parse", "--show-prefix")
	if err != nil {
		return nil, fmt.Errorf("reading the revision %s: %w", revision, err)
	}
	top, err := git("rev-parse", "--show-toplevel")
	if err != nil {
		return nil, fmt.Errorf("reading the revision %s: %w", revision, err)
	}
	at = strings.TrimSpace(string(top)) // git archive wants to run there
	folder := path.Clean(strings.TrimSpace(string(prefix)) + ".")
	tree := strings.TrimSpace(string(commit))
	if folder != "." {
		tree += ":" + folder
		if _, err := git("cat-file", "-e", tree); err != nil {
			return nil, fmt.Errorf("%s in the revision %s: %w", folder, revision, ErrNoTree)
		}
	}
	archive, err := git("archive", "--format=zip", tree)
	if err != nil {
		return nil, fmt.Errorf("reading the revision %s: %w", revision, err)
	}
	files, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		return nil, fmt.Errorf("reading the revision %s: %w", revision, err)
	}
	return files, nil
}
