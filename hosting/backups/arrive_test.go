package backups

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/backup"
	"atoll.dev/backup/storetest"
	"atoll.dev/envelope"
	"atoll.dev/hosting/controlplane"
)

// arrivalStore counts how often parts of a move's data are read, and fails to store the target's claim.
type arrivalStore struct {
	*storetest.Memory
	mu     sync.Mutex
	reads  int
	faults int // of the next claims
}

func (s *arrivalStore) Get(ctx context.Context, name string) ([]byte, error) {
	if strings.Contains(name, "/data-") {
		s.mu.Lock()
		s.reads++
		s.mu.Unlock()
	}
	return s.Memory.Get(ctx, name)
}

func (s *arrivalStore) Put(ctx context.Context, name string, content []byte) error {
	s.mu.Lock()
	isFault := strings.HasSuffix(name, "/claimed") && s.faults > 0
	if isFault {
		s.faults--
	}
	s.mu.Unlock()
	if isFault {
		return io.ErrUnexpectedEOF
	}
	return s.Memory.Put(ctx, name, content)
}

// set sets how many of the next claims fail, and returns how many parts were read since the last call.
func (s *arrivalStore) set(faults int) (reads int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reads, s.reads, s.faults = s.reads, 0, faults
	return reads
}

// arriving is the target of a move in a bubble of synctest.
type arriving struct {
	*side
	store *arrivalStore
	keys  envelope.KMS
	dir   string
	id    controlplane.ID
}

func newArriving(t *testing.T, dir string) *arriving {
	keys, err := envelope.ParseKeys(envelope.NewKeyLine("k1"))
	if err != nil {
		t.Fatal(err)
	}
	a := &arriving{store: &arrivalStore{Memory: storetest.NewMemory()}, keys: keys, dir: dir,
		id: controlplane.ID{Namespace: "a", Name: "hc"}}
	a.side = &side{o: Options{Store: a.store, KMS: keys, Spool: filepath.Join(dir, "spool"), Endpoint: "127.0.0.1:2",
		Dir:     func(id controlplane.ID) string { return filepath.Join(dir, id.Name) },
		State:   func(id controlplane.ID) string { return filepath.Join(dir, "state", id.Name) },
		Staging: func(id controlplane.ID, order string) string { return filepath.Join(dir, "staging", order) }}}
	a.start(t)
	t.Cleanup(func() { a.end() })
	return a
}

// put stores the data of the plane, with a record of how it ran.
func (a *arriving) put(t *testing.T, data string, record any) {
	t.Helper()
	source := filepath.Join(a.dir, "source")
	makeFile(t, filepath.Join(source, "etcd", "member", "snap", "db"), data)
	makeFile(t, filepath.Join(source, "pki", "ca.crt"), "authority")
	var archive bytes.Buffer
	if err := pack(&archive, source, map[string]any{controlplane.StagedPast: []string{},
		controlplane.StagedRecord: record}); err != nil {
		t.Fatal(err)
	}
	if err := backup.PutHandover(t.Context(), a.store, a.keys, backup.Plane(a.id), "m1", &archive); err != nil {
		t.Fatal(err)
	}
}

// state returns the state of the arrival some time later.
func (a *arriving) state() controlplane.Preparation {
	order := controlplane.RestoreOrder{ID: controlplane.ArrivalOrder("m1"), Source: a.id}
	a.Prepare(a.id, order)
	<-time.After(5 * time.Minute)
	return a.Prepare(a.id, order)
}

func (a *arriving) staged(name string) string {
	return filepath.Join(a.o.Staging(a.id, controlplane.ArrivalOrder("m1")), name)
}

// A damaged record of how the plane ran before is an error that shows, and not a plane that never ran. The target does
// not claim the plane, so the source can take it back.
func TestAnArrivalWithADamagedRecordFails(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a := newArriving(t, dir)
		a.put(t, "data", "not a record")
		if p := a.state(); p.State != controlplane.PreparationFailed || !strings.Contains(p.Message, "withdraw the move") {
			t.Errorf("the arrival is %+v", p)
		}
		if err := a.records.WithdrawHandover(t.Context(), backup.Plane(a.id), "m1", backup.Identity{}); err != nil {
			t.Errorf("the source cannot take the plane back: %v", err)
		}
	})
}

// A record that the disk has damaged since its arrival is read from the store again.
func TestARecordThatTheDiskHasDamagedIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a := newArriving(t, dir)
		a.put(t, "data", controlplane.Departure{LastStart: controlplane.LastStart{Served: "1.36.3"}})
		check := func() {
			t.Helper()
			if p := a.state(); p.State != controlplane.PreparationDone || p.Departure == nil || p.Departure.Served != "1.36.3" {
				t.Errorf("the arrival is %+v, with the departure %+v", p, p.Departure)
			}
		}
		check()
		a.end()
		makeFile(t, a.staged(controlplane.StagedRecord), "{")
		a.start(t)
		check()
		a.end()
		if err := os.Remove(a.staged(controlplane.StagedRecord)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		a.start(t)
		if p := a.state(); p.State != controlplane.PreparationDone { // as from a version that sent no record
			t.Errorf("without a record the arrival is %+v", p)
		}
	})
}

// The data is read once, however often the claim of the plane must be repeated, also after a restart. Data that the
// source has stored again is read again.
func TestAnArrivalReadsTheDataOnce(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a := newArriving(t, dir)
		a.put(t, "data", controlplane.Departure{})
		a.store.set(1000)
		if p := a.state(); p.State != controlplane.PreparationWaits {
			t.Errorf("without a claim the arrival is %+v", p)
		}
		if reads := a.store.set(1000); reads != 1 {
			t.Errorf("%d parts were read, and the data has one", reads)
		}
		a.end()
		a.start(t)
		a.state()
		if reads := a.store.set(1000); reads != 0 {
			t.Errorf("after a restart %d parts were read", reads)
		}
		a.put(t, "other data", controlplane.Departure{})
		a.state()
		if reads := a.store.set(0); reads != 1 {
			t.Errorf("the data has changed, and %d parts were read", reads)
		}
		if p := a.state(); p.State != controlplane.PreparationDone {
			t.Errorf("the arrival is %+v", p)
		}
		db, err := os.ReadFile(a.staged(filepath.Join("etcd", "member", "snap", "db")))
		if reads := a.store.set(0); err != nil || string(db) != "other data" || reads != 0 {
			t.Errorf("the data is %q, %v; %d parts were read", db, err, reads)
		}
	})
}
