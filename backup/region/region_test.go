package region

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"atoll.dev/backup"
	"atoll.dev/internal/postgres"
	"atoll.dev/test/testsite"
)

// TestARegionIsRestoredToAMoment writes a journal of acknowledged rows while a Copier copies the server, ends, begins
// again, loses its store for a while, and sees the server killed. Restores have every row that was acknowledged before
// their moment, and none that was begun later.
func TestARegionIsRestoredToAMoment(t *testing.T) {
	if testing.Short() {
		t.Skip("needs PostgreSQL")
	}
	w := startWorld(t)
	stop := w.startCopier(t)
	w.await(t, "the first base backup", func() bool { return w.copier.Check(t.Context()) == nil })
	j := &journal{}
	j.write(t, w.server, 300)
	w.awaitCopied(t, j)
	early := time.Now()
	j.write(t, w.server, 100)

	stop() // a Copier that ends
	j.write(t, w.server, 100)
	stop = w.startCopier(t)
	w.awaitCopied(t, j)
	if archives, _ := sortContents(w.region, w.names(t)); len(archives) != 1 || len(archives[0].bases) != 1 {
		t.Fatalf("a Copier that was started again did not continue the archive: %d archives", len(archives))
	}

	before := len(w.fileNames(t))
	w.isStoreDown.Store(true) // and a store and a server that fail
	j.write(t, w.server, 100)
	w.process.Kill()
	w.startServer(t)
	j.write(t, w.server, 100)
	writeFile(t, filepath.Join(w.files, "ca.pem"), "second")
	w.isStoreDown.Store(false)
	w.awaitCopied(t, j)
	w.await(t, "the changed file", func() bool { return len(w.fileNames(t)) == before+1 })
	late := time.Now()
	w.await(t, "a copy of everything before now", func() bool {
		windows, err := Windows(t.Context(), w.store, w.kms, w.region)
		return err == nil && len(windows) == 1 && !windows[0].To.Before(late)
	})
	stop()

	for _, at := range []time.Time{early, late, {}} {
		f, dirs := w.restore(t, at)
		limit := at
		if at.IsZero() {
			limit = f.Covered
		}
		j.compare(t, w.restored, limit)
		want := "second"
		if at.Equal(early) {
			want = "first"
		}
		if got, _ := os.ReadFile(filepath.Join(dirs.Files, "pki", "ca.pem")); string(got) != want {
			t.Errorf("restored to %v, the file is %q, want %q", at, got, want)
		}
		w.discard(t)
	}
	w.checkFaults(t)
}

// checkFaults checks the errors of moments and objects from which nothing can be restored.
func (w *world) checkFaults(t *testing.T) {
	fetch := func(region string, at time.Time) error {
		_, err := Fetch(t.Context(), w.store, w.kms, region, at, dirsBelow(t.TempDir()))
		return err
	}
	if err := fetch("another", time.Time{}); !errors.Is(err, ErrNoCopy) {
		t.Errorf("a region without copies: %v", err)
	}
	for _, at := range []time.Time{time.Now().Add(-time.Hour), time.Now().Add(time.Hour)} {
		if err := fetch(w.region, at); !errors.Is(err, backup.ErrOutside) {
			t.Errorf("restored to %v: %v", at, err)
		}
	}
	archives, files := sortContents(w.region, w.names(t))
	prefix := regionPrefix(w.region) + string(archives[0].name) + "/"
	middle := archives[0].pieces[len(archives[0].pieces)/2]
	for _, name := range []string{prefix + middle.name(), prefix + archives[0].bases[0] + "/" + partName(0),
		prefix + archives[0].bases[0] + "/" + manifestObject, files[len(files)-1]} {
		whole, err := w.store.Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		damaged := bytes.Clone(whole)
		damaged[len(damaged)/2] ^= 1
		w.put(t, name, damaged)
		if err := fetch(w.region, time.Time{}); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("with a changed byte in %s: %v", name, err)
		}
		w.put(t, name, whole)
	}
	if err := w.store.Delete(t.Context(), prefix+middle.name()); err != nil {
		t.Fatal(err)
	}
	if err := fetch(w.region, middle.Covered.Add(10*time.Second)); err == nil {
		t.Error("a restore to a moment after a missing piece succeeded")
	}
}

// world is a PostgreSQL server, a store, and a Copier between them.
type world struct {
	region      string
	server      *postgres.Cluster
	process     *postgres.Process
	copier      *Copier
	files       string // directory
	store       backup.Store
	kms         backup.KMS
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
	recovery := postgres.Recovery{Data: dirs.Data, WAL: dirs.WAL, Until: at}
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

// journal is what a writer knows of its rows.
type journal struct{ rows []journalRow }

type journalRow struct{ begun, acknowledged time.Time }

// write inserts rows, each in a transaction of its own.
func (j *journal) write(t *testing.T, server *postgres.Cluster, n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.DSN("postgres", postgres.Superuser))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), `create table if not exists journal (n int primary key, text text)`); err != nil {
		t.Fatal(err)
	}
	for range n {
		begun := time.Now()
		_, err := conn.Exec(t.Context(), `insert into journal values ($1, $2)`, len(j.rows), strings.Repeat("x", 3000))
		if err != nil {
			t.Fatal(err)
		}
		j.rows = append(j.rows, journalRow{begun, time.Now()})
	}
}

// compare checks the rows of a server that was restored to a moment.
func (j *journal) compare(t *testing.T, server *postgres.Cluster, at time.Time) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.DSN("postgres", postgres.Superuser))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	rows, err := conn.Query(t.Context(), `select n from journal`)
	if err != nil {
		t.Fatal(err)
	}
	numbers, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		t.Fatal(err)
	}
	isThere := map[int]bool{}
	for _, n := range numbers {
		isThere[n] = true
	}
	var faults []string
	for n, r := range j.rows {
		switch {
		case r.acknowledged.Before(at) && !isThere[n]:
			faults = append(faults, fmt.Sprintf("row %d was acknowledged before and is lost", n))
		case r.begun.After(at) && isThere[n]:
			faults = append(faults, fmt.Sprintf("row %d was begun later and is there", n))
		}
	}
	if len(faults) > 0 {
		t.Errorf("restored to %v: %d faults, the first: %s", at, len(faults), faults[0])
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
