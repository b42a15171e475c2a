package gitops

import (
	"bytes"
	"fmt"
	"io/fs"
)

// CompareTree compares the rendered files of a commit with files, and returns the differences by path. tree is the
// directory of rendered files in the commit.
func CompareTree(tree fs.FS, files Files) ([]Difference, error) {
	existing := Files{}
	err := fs.WalkDir(tree, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := fs.ReadFile(tree, path)
		if _, isExpected := files[path]; isExpected || IsRendered(data) {
			existing[path] = data
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading rendered files: %w", err)
	}
	return differencesOf(existing, files), nil
}

// FirstLine describes the first line that differs, with its number.
func (d Difference) FirstLine() string {
	switch {
	case d.Before == nil:
		return d.Path + ":1: the file is missing"
	case d.After == nil:
		return d.Path + ":1: nothing renders the file any more"
	}
	before, after := bytes.Split(d.Before, []byte("\n")), bytes.Split(d.After, []byte("\n"))
	line := 0
	for line < min(len(before), len(after))-1 && bytes.Equal(before[line], after[line]) {
		line++
	}
	return fmt.Sprintf("%s:%d: the file has %q, the configuration renders %q", d.Path, line+1,
		bytes.TrimSpace(before[line]), bytes.TrimSpace(after[line]))
}
