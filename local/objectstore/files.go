package objectstore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"atoll.dev/internal/atomicfile"
)

// Names of files. Each part of a key, between slashes, becomes one name: bytes other than letters, digits, "-", "_" and
// an inner "." are %XX. A directory's name ends with "+", which no part has: an object "a" and an object "a/b" can both
// exist. So no key names a file outside the directory, and none is a temporary file, whose name begins with ".".
const (
	dirSuffix   = "+"
	maxFileName = 250 // bytes; file systems allow 255
)

// checkKey reports whether an object may have this key.
func checkKey(key string) bool {
	if key == "" || len(key) > maxKey || !utf8.ValidString(key) {
		return false
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffe || r == 0xffff }) {
		return false // XML cannot express it
	}
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || len(encodePart(part))+len(dirSuffix) > maxFileName {
			return false
		}
	}
	return true
}

func isPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

func encodePart(part string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(part) {
		if c := part[i]; isPlain(c) || c == '.' && i > 0 {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

// decodePart is the inverse of encodePart. ok is false for a name that encodePart does not return.
func decodePart(name string) (part string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if name[i] != '%' {
			b.WriteByte(name[i])
			continue
		}
		if i+2 >= len(name) {
			return "", false
		}
		high, low := strings.IndexByte("0123456789ABCDEF", name[i+1]), strings.IndexByte("0123456789ABCDEF", name[i+2])
		if high < 0 || low < 0 {
			return "", false
		}
		b.WriteByte(byte(high<<4 | low))
		i += 2
	}
	return b.String(), b.Len() > 0 && encodePart(b.String()) == name
}

// path returns the file of a key that passed checkKey.
func (s *Server) path(key string) string {
	parts := strings.Split(key, "/")
	for i, part := range parts {
		parts[i] = encodePart(part)
		if i < len(parts)-1 {
			parts[i] += dirSuffix
		}
	}
	return filepath.Join(append([]string{s.objects}, parts...)...)
}

// create makes the temporary file of an object, and the directories above it.
func (s *Server) create(path string) (*atomicfile.File, error) {
	s.tree.Lock()
	defer s.tree.Unlock()
	if err := makeDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	return atomicfile.New(path, 0o600)
}

// makeDir makes a directory and those above it, on disk.
func makeDir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeDir(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o700)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(dir))
}

// remove removes a file, on disk, and the directories above it that are empty then. It is no error when there is none.
func (s *Server) remove(path string) error {
	s.tree.Lock()
	defer s.tree.Unlock()
	err := os.Remove(path)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	for dir != s.objects && os.Remove(dir) == nil { // a directory that is not empty stays
		dir = filepath.Dir(dir)
	}
	return atomicfile.SyncDir(dir)
}

// isMissing reports whether an object does not exist: its file, or a directory above it.
func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// removeTemporaryFiles removes the files of uploads that a killed server left.
func removeTemporaryFiles(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !atomicfile.IsTemp(e.Name()) {
			return err
		}
		return os.Remove(path)
	})
}

// object is an entry of a list.
type object struct {
	key  string
	file fs.FileInfo // nil: the entry is of a group, see listGroups
}

// list returns at most limit objects whose keys begin with prefix and are greater than after, in the order of the keys'
// bytes.
func (s *Server) list(prefix, after string, limit int) ([]object, error) {
	l := lister{prefix: prefix, after: after, limit: limit}
	err := l.visit(s.objects, "")
	return l.found, err
}

// listGroups is as list, but returns one entry without a file for all objects whose keys have the same text up to the
// first slash after prefix. Its key ends with that slash.
func (s *Server) listGroups(prefix, after string, limit int) ([]object, error) {
	l := lister{prefix: prefix, after: after, limit: limit, groups: true}
	err := l.visit(s.objects, "")
	return l.found, err
}

type lister struct {
	prefix, after string
	limit         int
	groups        bool // see listGroups
	found         []object
}

// visit appends the objects of a directory and of those below it. All their keys begin with base.
func (l *lister) visit(dir, base string) error {
	entries, err := os.ReadDir(dir)
	if isMissing(err) {
		return nil // its last object was deleted meanwhile
	}
	if err != nil {
		return err
	}
	type child struct {
		key   string // with "/" at the end when it is a directory
		entry fs.DirEntry
	}
	children := make([]child, 0, len(entries))
	for _, e := range entries {
		name, slash := e.Name(), ""
		if e.IsDir() {
			var ok bool
			if name, ok = strings.CutSuffix(name, dirSuffix); !ok {
				continue
			}
			slash = "/"
		}
		if part, ok := decodePart(name); ok {
			children = append(children, child{base + part + slash, e})
		}
	}
	// A key is less than another when the first names in which they differ are, with the slash of a directory.
	slices.SortFunc(children, func(a, b child) int { return strings.Compare(a.key, b.key) })
	for _, c := range children {
		if len(l.found) == l.limit {
			return nil
		}
		if err := l.add(c.key, dir, c.entry); err != nil {
			return err
		}
	}
	return nil
}

func (l *lister) add(key, dir string, e fs.DirEntry) error {
	if e.IsDir() {
		hasPrefix := strings.HasPrefix(key, l.prefix) || strings.HasPrefix(l.prefix, key)
		if !hasPrefix || key < l.after && !strings.HasPrefix(l.after, key) {
			return nil
		}
		if l.groups && len(key) > len(l.prefix) {
			return l.addGroup(key, filepath.Join(dir, e.Name()))
		}
		return l.visit(filepath.Join(dir, e.Name()), key)
	}
	if !strings.HasPrefix(key, l.prefix) || key <= l.after {
		return nil
	}
	file, err := e.Info()
	if isMissing(err) {
		return nil
	}
	if err == nil {
		l.found = append(l.found, object{key, file})
	}
	return err
}

// addGroup appends the entry of a directory, unless the page before has it, or it has no object.
func (l *lister) addGroup(key, dir string) error {
	if key <= l.after {
		return nil
	}
	first := lister{prefix: key, limit: 1}
	if err := first.visit(dir, key); err != nil || len(first.found) == 0 {
		return err
	}
	l.found = append(l.found, object{key: key})
	return nil
}
