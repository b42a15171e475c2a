package region

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"atoll.dev/backup"
	"atoll.dev/envelope"
	"atoll.dev/internal/postgres"
	"atoll.dev/test/testsite"
)

// world is a PostgreSQL server, a store, and a Copier between them.
type world struct {
	region      string
	server      *postgres.Cluster
	process     *postgres.Process
	copier      *Copier
	files       string // directory
	store       backup.Store
	kms         envelope.KMS
	isStoreDown atomic.Bool

	restored        *postgres.Cluster
	restoredProcess *postgres.Process
}

func startWorld(t *testing.T) *world {
	w := &world{region: "region-1", files: t.TempDir()}
	writeFile(t, filepath.Join(w.files, "ca.pem"), "first")
	memory := s3mem.New()
	if err := memory.CreateBucket("backups"); err != nil {
		t.Fatal(err)
	}
	s3 := gofakes3.New(memory).Server()
	l := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.isStoreDown.Load() {
			http.Error(rw, "down", http.StatusServiceUnavailable)
			return
		}
		s3.ServeHTTP(rw, r)
	}))
	t.Cleanup(l.Close)
	dir := t.TempDir()
	key := make([]byte, 32)
	rand.Read(key)
	writeFile(t, filepath.Join(dir, "keys"), "k1 "+base64.StdEncoding.EncodeToString(key)+"\n")
	writeFile(t, filepath.Join(dir, "credentials"), "aws_access_key_id = A\naws_secret_access_key = S\n")
	writeFile(t, filepath.Join(dir, "store.yaml"),
		"bucket: backups\nendpoint: "+l.URL+"\ncredentials_file: credentials\nkey_file: keys\n")
	var err error
	if w.store, w.kms, err = backup.ReadConfig(filepath.Join(dir, "store.yaml")); err != nil {
		t.Fatal(err)
	}
	w.server = newServer(t)
	if err := w.server.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.startServer(t)
	return w
}

// newServer describes a server in a directory that its user can reach.
func newServer(t *testing.T) *postgres.Cluster {
	dir, err := os.MkdirTemp("", "atoll-region-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &postgres.Cluster{DataDir: filepath.Join(dir, "data"), SocketDir: filepath.Join(dir, "run")}
}

func (w *world) startServer(t *testing.T) {
	var err error
	if w.process, err = w.server.Start(t.Context(), io.Discard); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.process.Kill() })
}

// startCopier starts a Copier, which ends with stop.
func (w *world) startCopier(t *testing.T) (stop func()) {
	w.copier = New(Options{
		Region: w.region, Server: w.server.DSN("postgres", postgres.Superuser),
		BaseBackup: w.server.Binaries.Path("pg_basebackup"), Files: map[string]string{"pki": w.files},
		Store: w.store, KMS: w.kms, Keep: 7 * 24 * time.Hour, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		w.copier.Run(ctx)
		close(done)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

func (w *world) names(t *testing.T) []string {
	names, err := w.store.List(t.Context(), regionPrefix(w.region))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func (w *world) fileNames(t *testing.T) []string {
	_, files := sortContents(w.region, w.names(t))
	return files
}

func (w *world) put(t *testing.T, name string, object []byte) {
	if err := w.store.Put(t.Context(), name, object); err != nil {
		t.Fatal(err)
	}
}

// awaitCopied waits until the copy has every row of the journal.
func (w *world) awaitCopied(t *testing.T, j *journal) {
	last := j.rows[len(j.rows)-1].acknowledged
	w.await(t, "a copy of the last row", func() bool {
		w.copier.mu.Lock()
		defer w.copier.mu.Unlock()
		return w.copier.covered.After(last)
	})
}

func (w *world) await(t *testing.T, what string, isTrue func() bool) {
	t.Helper()
	testsite.EventuallyWithin(t, what, 3*time.Minute, func() error {
		if !isTrue() {
			return fmt.Errorf("not yet; the copier: %v", w.copier.Check(t.Context()))
		}
		return nil
	})
}

// restore recovers the region to a moment on a server of its own.
func (w *world) restore(t *testing.T, at time.Time) (Fetched, Dirs) {
	w.restored = newServer(t)
	dirs := dirsBelow(filepath.Dir(w.restored.DataDir))
	f, err := Fetch(t.Context(), w.store, w.kms, w.region, at, dirs)
	if err != nil {
		t.Fatal(err)
	}
	recovery := postgres.Recovery{Data: dirs.Data, WAL: dirs.WAL, Until: at, End: uint64(f.End)}
	if err := w.restored.Recover(t.Context(), recovery); err != nil {
		t.Fatal(err)
	}
	if err := w.restored.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.restoredProcess, err = w.restored.Start(t.Context(), io.Discard); err != nil {
		t.Fatal(err)
	}
	return f, dirs
}

func dirsBelow(dir string) Dirs {
	return Dirs{filepath.Join(dir, "fetched"), filepath.Join(dir, "wal"), filepath.Join(dir, "files")}
}

func (w *world) discard(t *testing.T) {
	if err := w.restoredProcess.Stop(); err != nil {
		t.Error(err)
	}
}
