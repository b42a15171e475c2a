package region

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"atoll.dev/internal/atomicfile"
)

// maxFiles bounds the size of all files together, in bytes.
const maxFiles = 64 << 20

// copyFiles reads the files every filesEvery and stores them when one has changed. It returns an error when that fails,
// and nil when ctx ends.
func (s *session) copyFiles(ctx context.Context) error {
	for {
		if err := s.c.findFiles(); err != nil {
			return err
		}
		text, err := packFiles(s.c.o.Files)
		if err != nil {
			return err
		}
		if sum := sha256.Sum256(text); sum != s.c.storedFiles {
			if err := s.storeFiles(ctx, text); err != nil {
				return err
			}
			s.c.storedFiles = sum
		}
		s.c.noteProblem("files", nil)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(filesEvery):
		}
	}
}

// findFiles returns an error when a file is missing that existed earlier: the latest copy must not lack it.
func (c *Copier) findFiles() error {
	for _, name := range slices.Sorted(maps.Keys(c.o.Files)) {
		_, err := os.Lstat(c.o.Files[name])
		switch {
		case err == nil:
			c.foundFiles[name] = true
		case errors.Is(err, fs.ErrNotExist) && c.foundFiles[name]:
			return fmt.Errorf("a file that existed earlier is missing: %w: put it back, or start region-backup again "+
				"if nothing needs it", err)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	return nil
}

func (s *session) storeFiles(ctx context.Context, text []byte) error {
	at, err := s.sample(ctx)
	if err != nil {
		return err
	}
	compress, err := newCompressor()
	if err != nil {
		return err
	}
	defer compress.Close()
	return s.put(ctx, regionPrefix(s.c.o.Region)+filesPrefix+at.Time.Format(timeFormat), compress.EncodeAll(text, nil))
}

// packFiles returns files and directories as a tar, each below its name. The same content gives the same bytes. It
// leaves out missing and temporary files.
func packFiles(files map[string]string) ([]byte, error) {
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		root := files[name]
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			below, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			if err := packFile(w, filepath.Join(name, below), path, entry); err != nil {
				return err
			}
			if packed.Len() > maxFiles {
				return errTooLarge
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("reading the files of the region: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}

var errTooLarge = fmt.Errorf("they have more than %d MiB: name fewer files with --file", maxFiles>>20)

func packFile(w *tar.Writer, name, path string, entry fs.DirEntry) error {
	if entry.IsDir() {
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o700})
	}
	if !entry.Type().IsRegular() || atomicfile.IsTemp(entry.Name()) {
		return nil
	}
	info, err := entry.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Size() > maxFiles {
		return errTooLarge
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(info.Mode().Perm()), Size: int64(len(text))}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

// extract writes the files of a tar below dir, and syncs each file to disk.
func extract(r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for files := tar.NewReader(r); ; {
		file, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		mode := fs.FileMode(file.Mode).Perm()
		switch file.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(filepath.Clean(file.Name), mode|0o700)
		case tar.TypeReg:
			err = extractFile(root, filepath.Clean(file.Name), mode, files)
		default:
			err = fmt.Errorf("%s is neither a file nor a directory", file.Name)
		}
		if err != nil {
			return err
		}
	}
}

func extractFile(root *os.Root, name string, mode fs.FileMode, r io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Sync(), f.Close())
}

// decompress returns the text of an object that newCompressor's encoder made.
func decompress(text []byte) ([]byte, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(2*maxFiles))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.DecodeAll(text, nil)
}
