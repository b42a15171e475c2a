package backups

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"atoll.dev/backup"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/beneath"
)

// Bounds of the data of a plane that moves. The plane wrote the files, and may have been hostile.
const (
	packDepth = 4
	packFiles = 8192
	packBytes = 16 << 30
)

// errBounds is the error of data that a management cluster does not accept from another one.
var errBounds = errors.New("the data of the plane exceeds what can move to another management cluster")

// packedDirs are the directories of a plane that move with it.
var packedDirs = []string{"etcd", "pki"}

// pack writes a tar archive: first files, each with its value as JSON, and then the data and keys of a stopped plane.
// It follows no link.
func pack(w io.Writer, dir string, files map[string]any) error {
	p := packer{out: tar.NewWriter(w), dir: dir, files: packFiles, bytes: packBytes}
	if err := p.addAll(files); err != nil {
		return err
	}
	return p.out.Close()
}

// checkPack returns the error that pack would return, without reading the content of the plane's files. It is errBounds
// when the data is too large to move. The data of a running plane may still grow beyond the bounds.
func checkPack(dir string, files map[string]any) error {
	p := packer{dir: dir, files: packFiles, bytes: packBytes}
	return p.addAll(files)
}

type packer struct {
	out   *tar.Writer // nil: the packer only checks
	dir   string
	files int   // number of files that it may still add
	bytes int64 // number of bytes that it may still add
}

// addAll adds files with values as JSON, and those of the directories of a plane that move.
func (p *packer) addAll(files map[string]any) error {
	for name, value := range files {
		content, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if err := p.header(name, int64(len(content))); err != nil {
			return err
		}
		if p.out == nil {
			continue
		}
		if _, err := p.out.Write(content); err != nil {
			return err
		}
	}
	for _, name := range packedDirs {
		if err := p.addDir(name, packDepth); err != nil {
			return err
		}
	}
	return nil
}

// header begins a file. It counts all of them, as unpack does.
func (p *packer) header(name string, size int64) error {
	if p.files--; p.files < 0 {
		return fmt.Errorf("%w: it has more than %d files", errBounds, packFiles)
	}
	if p.bytes -= size; p.bytes < 0 {
		return fmt.Errorf("%w: it has more than %d GiB", errBounds, packBytes>>30)
	}
	if p.out == nil {
		return nil
	}
	return p.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(name), Size: size, Mode: 0o600})
}

func (p *packer) addDir(name string, depth int) error {
	if depth == 0 {
		return fmt.Errorf("%w: the directory %s is deeper than %d", errBounds, name, packDepth)
	}
	names, err := beneath.List(p.dir, name, packFiles)
	if errors.Is(err, beneath.ErrTooLarge) {
		err = fmt.Errorf("%w: %w", errBounds, err)
	}
	if err != nil {
		return err
	}
	for _, part := range names {
		path := filepath.Join(name, part)
		info, err := os.Lstat(filepath.Join(p.dir, path)) // beneath decides what is opened
		switch {
		case err != nil:
		case info.IsDir():
			err = p.addDir(path, depth-1)
		default:
			err = p.addFile(path)
			if errors.Is(err, beneath.ErrKind) { // a link or a socket, which a plane does not need to start
				err = nil
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) addFile(name string) error {
	in, err := beneath.Open(p.dir, name)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := p.header(name, info.Size()); err != nil || p.out == nil {
		return err
	}
	_, err = io.CopyN(p.out, in, info.Size())
	return err
}

// unpack writes the files of an archive below dir and syncs them to disk.
func unpack(in io.Reader, dir string) error {
	archive := tar.NewReader(in)
	dirs := map[string]bool{dir: true}
	for n, left := 0, int64(packBytes); ; n++ {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		left -= h.Size
		isPlain := filepath.IsLocal(h.Name) && filepath.Clean(h.Name) == h.Name && !strings.Contains(h.Name, "\\")
		if n >= packFiles || left < 0 || !isPlain || h.Typeflag != tar.TypeReg {
			return fmt.Errorf("%w: a file %q of %d bytes in the data of a move", backup.ErrCorrupt, h.Name, h.Size)
		}
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		for d := filepath.Dir(path); !dirs[d]; d = filepath.Dir(d) {
			dirs[d] = true
		}
		if err := unpackFile(path, archive); err != nil {
			return err
		}
	}
	for d := range dirs {
		if err := atomicfile.SyncDir(d); err != nil {
			return err
		}
	}
	return nil
}

func unpackFile(path string, content io.Reader) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, content); err != nil {
		return err
	}
	return f.Sync()
}
