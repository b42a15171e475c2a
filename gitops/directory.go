package gitops

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"golang.org/x/sync/errgroup"

	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/filelock"
)

// Directory is the path of the directory of rendered files in a checkout of a Git repository.
// It may have other files: Write replaces and removes only files with the marker of rendered
// files.
type Directory string

// Difference is a file that is not as it would be rendered.
type Difference struct {
	Path   string // below the directory
	Before []byte // nil: the file is not there
	After  []byte // nil: the file is stale, nothing renders it any more
}

// Text shows the difference line by line, in the form of diff -u.
func (d Difference) Text() string {
	return string(diff.Diff(d.Path, d.Before, d.Path+" (rendered)", d.After))
}

// Compare returns the changes that Write would make, by path. The error names a file that is in
// the way and was not rendered.
func (d Directory) Compare(files Files) ([]Difference, error) {
	existing, _, err := d.readAllRendered()
	if err != nil {
		return nil, err
	}
	return d.compare(existing, files)
}

func (d Directory) compare(existing, files Files) ([]Difference, error) {
	free := map[string]bool{}
	for path := range files {
		if _, ok := existing[path]; !ok {
			if err := d.checkFree(path, free); err != nil {
				return nil, err
			}
		}
	}
	return differencesOf(existing, files), nil
}

// differencesOf returns how existing files differ from rendered ones, by path.
func differencesOf(existing, files Files) []Difference {
	var differences []Difference
	for path, after := range files {
		if before := existing[path]; before == nil || !bytes.Equal(before, after) {
			differences = append(differences, Difference{path, before, after})
		}
	}
	for path, before := range existing {
		if _, ok := files[path]; !ok {
			differences = append(differences, Difference{path, before, nil})
		}
	}
	slices.SortFunc(differences, func(a, b Difference) int { return strings.Compare(a.Path, b.Path) })
	return differences
}

// ErrBusy: another process writes the directory.
var ErrBusy = errors.New("another `atoll config render` writes the directory; wait for its end")

// Write writes the files that differ, each atomically, and removes stale ones, and the
// temporary files of a killed Write. It returns the changes. It checks everything before it
// changes anything; when it is interrupted, another Write continues. While another process is
// in Write, the error is ErrBusy.
func (d Directory) Write(ctx context.Context, files Files) ([]Difference, error) {
	if len(files) > 0 {
		if err := os.MkdirAll(string(d), 0o755); err != nil {
			return nil, fmt.Errorf("writing rendered files: %w", err)
		}
	}
	unlock, err := d.lock()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // there is nothing, and nothing to write
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	existing, leftovers, err := d.readAllRendered()
	if err != nil {
		return nil, err
	}
	differences, err := d.compare(existing, files)
	if err != nil {
		return nil, err
	}
	written := Files{}
	for _, change := range differences {
		if change.After != nil {
			written[change.Path] = change.After
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for _, path := range leftovers {
		if err := os.RemoveAll(path); err != nil {
			return nil, fmt.Errorf("removing what a killed process has left: %w", err)
		}
	}
	err = atomicfile.WriteMany(filepath.Clean(string(d)), written, 0o644)
	for _, change := range differences {
		if err == nil && change.After == nil {
			err = d.remove(change.Path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("writing rendered files; run it again to complete them: %w", err)
	}
	return differences, nil
}

// lock makes this process the only one that writes the directory, until unlock or its end.
func (d Directory) lock() (unlock func(), err error) {
	f, err := os.Open(string(d))
	if err != nil {
		return nil, err
	}
	unlock, err = filelock.TryFile(f)
	if errors.Is(err, filelock.ErrLocked) {
		err = ErrBusy
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d, err)
	}
	return unlock, nil
}

// remove removes a stale file, and the directories that are empty without it.
func (d Directory) remove(path string) error {
	file := d.file(path)
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for dir := filepath.Dir(file); dir != filepath.Clean(string(d)); dir = filepath.Dir(dir) {
		if os.Remove(dir) != nil {
			break // it has other files
		}
	}
	return nil
}

func (d Directory) file(path string) string {
	return filepath.Join(string(d), filepath.FromSlash(path))
}

// checkFree returns an error when a path cannot be written, because a file that was not rendered is there, or because
// one of the path's directories is a file or a symbolic link. So Write writes nothing outside of the directory. free
// has the directories that were checked; checkFree adds to it.
func (d Directory) checkFree(path string, free map[string]bool) error {
	for i := range len(path) + 1 {
		if i < len(path) && path[i] != '/' {
			continue
		}
		part := path[:i]
		if free[part] {
			continue
		}
		info, err := os.Lstat(d.file(part))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return fmt.Errorf("reading %s: %w", d.file(part), err)
		case i == len(path) || !info.IsDir():
			return fmt.Errorf("%s was not rendered and is in the way: move it", d.file(part))
		}
		free[part] = true
	}
	return nil
}

// readAllRendered returns the files with the marker, and the paths of temporary files of a killed Write. A directory
// that does not exist has none.
func (d Directory) readAllRendered() (files Files, leftovers []string, err error) {
	root := filepath.Clean(string(d))
	var paths []string
	// With the point at the end of the path, WalkDir follows root when it is a symbolic link.
	err = filepath.WalkDir(root+string(filepath.Separator)+".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case e.IsDir() && e.Name() == ".git":
			return filepath.SkipDir
		case atomicfile.IsTemp(e.Name()):
			leftovers = append(leftovers, path)
			if e.IsDir() {
				return filepath.SkipDir
			}
		case e.Type().IsRegular():
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("reading rendered files: %w", err)
	}
	contents := make([][]byte, len(paths))
	readers := runtime.GOMAXPROCS(0)
	var group errgroup.Group
	for reader := range readers {
		group.Go(func() (err error) {
			for i := reader; i < len(paths) && err == nil; i += readers {
				contents[i], err = readRendered(paths[i])
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, fmt.Errorf("reading rendered files: %w", err)
	}
	files = make(Files, len(paths))
	for i, path := range paths {
		if contents[i] == nil {
			continue
		}
		below, err := filepath.Rel(root, path)
		if err != nil {
			return nil, nil, err
		}
		files[filepath.ToSlash(below)] = contents[i]
	}
	return files, leftovers, nil
}

// readRendered returns the content of a rendered file. Of a file without the marker it reads the beginning only, and
// returns nil.
func readRendered(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, int64(markerHead)))
	if err != nil || !IsRendered(head) {
		return nil, err
	}
	rest, err := io.ReadAll(f)
	return append(head, rest...), err
}
