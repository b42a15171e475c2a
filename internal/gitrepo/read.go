package gitrepo

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// ReadFile returns a file of a commit. The error is fs.ErrNotExist when the commit does not have it.
func (b Branch) ReadFile(ctx context.Context, commit, name string) ([]byte, error) {
	listed, err := b.git(ctx, nil, "ls-tree", "--full-tree", "--name-only", commit, "--", name)
	if err != nil {
		return nil, err
	}
	if len(listed) == 0 {
		return nil, fmt.Errorf("%s in the commit %s: %w", name, commit, fs.ErrNotExist)
	}
	return b.git(ctx, nil, "cat-file", "blob", commit+":"+name)
}

// Tree returns the files of a directory of a commit, as the commit has them: attributes of the clone, which leave out
// or rewrite files of a checkout, do not matter. A directory that the commit does not have is empty. With paths
// below the directory, it returns the files at and below them only.
func (b Branch) Tree(ctx context.Context, commit, dir string, below ...string) (fs.FS, error) {
	tree := commit
	if dir = path.Clean(dir); dir != "." {
		listed, err := b.git(ctx, nil, "ls-tree", "--full-tree", "--name-only", commit, "--", dir)
		if err != nil {
			return nil, err
		}
		if len(listed) == 0 {
			return archiveOf(nil, nil)
		}
		tree += ":" + dir
	}
	entries, err := b.list(ctx, tree, below)
	if err != nil {
		return nil, err
	}
	var objects strings.Builder
	for _, e := range entries {
		fmt.Fprintln(&objects, e.object)
	}
	blobs, err := b.git(ctx, []byte(objects.String()), "cat-file", "--batch")
	if err != nil {
		return nil, err
	}
	return archiveOf(entries, bufio.NewReader(bytes.NewReader(blobs)))
}

// pathsAtOnce is how many paths one command of git gets: the system limits the length of its arguments.
const pathsAtOnce = 1000

// list returns the files of a tree, or those at and below some paths.
func (b Branch) list(ctx context.Context, tree string, below []string) (all []entry, err error) {
	parts := slices.Collect(slices.Chunk(below, pathsAtOnce))
	if len(parts) == 0 {
		parts = [][]string{nil} // all files
	}
	for _, part := range parts {
		listed, err := b.git(ctx, nil, append([]string{"ls-tree", "--full-tree", "-r", "-z", tree, "--"}, part...)...)
		if err != nil {
			return nil, err
		}
		entries, err := entriesOf(string(listed))
		if err != nil {
			return nil, err
		}
		all = append(all, entries...)
	}
	if len(parts) > 1 { // a file may be at or below paths of several parts
		slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.name, b.name) })
		all = slices.CompactFunc(all, func(a, b entry) bool { return a.name == b.name })
	}
	return all, nil
}

// entry is a file of a tree.
type entry struct {
	name, object string
	mode         fs.FileMode
}

// entriesOf returns the files and symbolic links in a list of ls-tree -r -z, without submodules.
func entriesOf(listed string) (all []entry, err error) {
	for line := range strings.SplitSeq(strings.TrimSuffix(listed, "\x00"), "\x00") {
		if line == "" {
			continue
		}
		about, name, _ := strings.Cut(line, "\t")
		fields := strings.Fields(about) // mode, type, object
		if len(fields) != 3 {
			return nil, fmt.Errorf("git ls-tree answers %q", line)
		}
		if fields[1] != "blob" {
			continue
		}
		e := entry{name: name, object: fields[2], mode: 0o644}
		if fields[0] == "120000" {
			e.mode |= fs.ModeSymlink
		}
		all = append(all, e)
	}
	return all, nil
}

// archiveOf returns the entries with their contents, which blobs has in the same order in the form of cat-file --batch.
func archiveOf(entries []entry, blobs *bufio.Reader) (fs.FS, error) {
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	for _, e := range entries {
		var object, kind string
		var size int64
		if _, err := fmt.Fscanf(blobs, "%s %s %d\n", &object, &kind, &size); err != nil || object != e.object {
			return nil, fmt.Errorf("reading %s: git cat-file has no object %s (%w)", e.name, e.object, err)
		}
		header := &zip.FileHeader{Name: e.name, Method: zip.Store}
		header.SetMode(e.mode)
		to, err := w.CreateHeader(header)
		if err == nil {
			_, err = io.CopyN(to, blobs, size)
		}
		if err == nil {
			_, err = blobs.Discard(1) // the end of the line after the content
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", e.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return zip.NewReader(bytes.NewReader(archive.Bytes()), int64(archive.Len()))
}
