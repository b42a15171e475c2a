// Package objectstore is a small S3 server with one bucket and one key pair, for the backups of a region on one
// machine. Its objects are files, so they are lost with the machine: production names a store in another account.
//
// It serves PUT, GET, HEAD and DELETE of an object, and ListObjectsV2, path-style: enough for `aws s3 ls` and `cp`.
// Each request must have a signature (Signature Version 4, in the header, with the hash of the body). A PUT is
// acknowledged when the object is on disk.
//
// Command `atoll object-store` runs it. It imports no service, and no service imports it.
package objectstore

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"atoll.dev/envelope"
	"atoll.dev/internal/atomicfile"
)

// Limits of the server.
const (
	maxObject = 64 << 20 // bytes
	maxKey    = 1024     // bytes, as in S3
	maxPage   = 1000     // objects of one answer to a list, as in S3
)

const bucket = "backups"

// Files in the directory of a server.
const (
	StoreFile       = "store.yaml"  // names the store, for atoll hosting --backups
	credentialsFile = "credentials" // the key pair
	keyFile         = "backup.keys" // encrypts the backups; the server itself does not use it
	objectsDir      = "objects"
)

// Options are what a Server needs; all must be set.
type Options struct {
	Dir      string // of its files
	Endpoint string // URL at which programs reach it
	Log      *slog.Logger
}

// Server is an http.Handler. Use New.
type Server struct {
	keyPair
	objects string // directory
	log     *slog.Logger
	// tree is held while a directory is made for an object, and while empty directories are removed.
	tree sync.Mutex
}

// New makes the files that are missing in the directory, and removes those of uploads that a killed server left.
func New(o Options) (*Server, error) {
	s := &Server{objects: filepath.Join(o.Dir, objectsDir), log: o.Log}
	if err := s.open(o); err != nil {
		return nil, fmt.Errorf("object store: %w", err)
	}
	return s, nil
}

func (s *Server) open(o Options) (err error) {
	if err := os.MkdirAll(s.objects, 0o700); err != nil {
		return err
	}
	if err := removeTemporaryFiles(s.objects); err != nil {
		return err
	}
	if s.keyPair, err = openKeyPair(filepath.Join(o.Dir, credentialsFile)); err != nil {
		return err
	}
	if err := s.ensureKeyFile(filepath.Join(o.Dir, keyFile)); err != nil {
		return err
	}
	store := fmt.Appendf(nil, "bucket: %s\nendpoint: %q\ncredentials_file: %s\nkey_file: %s\n", bucket, o.Endpoint,
		credentialsFile, keyFile)
	return atomicfile.Write(filepath.Join(o.Dir, StoreFile), store, 0o600)
}

// ensureKeyFile makes the key that encrypts backups. It makes none when there are objects: their key is lost then, and
// somebody must know it.
func (s *Server) ensureKeyFile(path string) error {
	_, err := os.Stat(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	entries, err := os.ReadDir(s.objects)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is missing, and without it nobody can read the backups in %s: put it back, or remove them",
			path, s.objects)
	}
	return atomicfile.Write(path, envelope.NewKeyLine("k1"), 0o600)
}
