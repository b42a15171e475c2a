package region

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/backup"
	"atoll.dev/internal/postgres"
	"atoll.dev/internal/quick"
)

// TestARegionIsRestoredToAMoment writes a journal of acknowledged rows while a Copier copies the server, ends, begins
// again, loses its store for a while, and sees the server killed. Restores have every row that was acknowledged before
// their moment, and none that was begun later.
func TestARegionIsRestoredToAMoment(t *testing.T) {
	quick.LeavesOut(t, "needs a PostgreSQL server")
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
	w.fillWAL(t)
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

	w.checkIsKept(t)
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
	w.checkDamagedWAL(t)
	w.checkFaults(t)
}

// fillWAL writes 2.4 MB of WAL.
func (w *world) fillWAL(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), w.server.DSN("postgres", postgres.Superuser))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(t.Context(),
		`select pg_logical_emit_message(false, 'filler', repeat('x', 8000)) from generate_series(1, 300)`)
	if err != nil {
		t.Fatal(err)
	}
}

// checkDamagedWAL checks that a recovery is an error when the server cannot read WAL 1.5 MiB before the end: PostgreSQL
// takes it for the end of the WAL.
func (w *world) checkDamagedWAL(t *testing.T) {
	restored := newServer(t)
	dirs := dirsBelow(filepath.Dir(restored.DataDir))
	f, err := Fetch(t.Context(), w.store, w.kms, w.region, time.Time{}, dirs)
	if err != nil {
		t.Fatal(err)
	}
	at, size := f.End-3<<19, f.Manifest.SegmentSize
	start := segmentStart(at, size)
	file, err := os.OpenFile(filepath.Join(dirs.WAL, segmentFile(f.Manifest.Timeline, start, size)), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteAt([]byte("damaged"), int64(at-start))
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	err = restored.Recover(t.Context(), postgres.Recovery{Data: dirs.Data, WAL: dirs.WAL, End: uint64(f.End)})
	if err == nil || !strings.Contains(err.Error(), "the WAL is damaged") {
		t.Errorf("a recovery that ended before the end of the WAL: %v", err)
	}
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

// checkIsKept checks which archives a server continues: not one with WAL that the server does not have, as after a
// reset of its disk.
func (w *world) checkIsKept(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), w.server.DSN("postgres", postgres.Superuser))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	s := &session{c: &Copier{archive: w.copier.archive, end: w.copier.end}, sql: conn}
	if isKept, err := s.canContinueArchive(t.Context()); !isKept || err != nil {
		t.Errorf("the server's own archive is not continued: %v", err)
	}
	s.c.end += 1 << 30
	if isKept, err := s.canContinueArchive(t.Context()); isKept || err != nil {
		t.Errorf("an archive that ends after the server's WAL is continued: %v", err)
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
