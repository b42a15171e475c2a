package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"atoll.dev/internal/pause"
)

// earlierPartSize is the size of the parts that earlier versions have stored.
const earlierPartSize = 2 << 20

// A snapshot of several parts is restored, whatever size its parts have: stores have parts of earlier versions.
func TestASnapshotOfSeveralPartsIsRestored(t *testing.T) {
	for _, size := range []int{earlierPartSize, partSize, 100_000} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.stop()
			blob := make([]byte, 5<<20) // that cannot be compressed
			_, _ = rand.NewChaCha8([32]byte{1}).Read(blob)
			copy(blob, "snapshot of revision 0\n")
			w.etcd.snapshot = func(s pb.Maintenance_SnapshotServer) error {
				for part := range slices.Chunk(blob, 32<<10) {
					if err := s.Send(&pb.SnapshotResponse{Blob: part}); err != nil {
						return err
					}
				}
				return nil
			}
			w.f.partSize = size
			w.store = newMemoryStore()
			w.f.o.Store = w.store
			w.run()
			sleep(time.Second) // the snapshot has no change
			w.write(10, time.Second)
			sleep(10 * time.Second)
			w.stop()
			for i := range (len(blob) + size - 1) / size {
				chains, err := Chains(t.Context(), w.store, testPlane)
				if err != nil || len(chains) != 1 {
					t.Fatalf("%d chains, %v", len(chains), err)
				}
				part := w.store.content(testPlane.prefix() + chains[0].Name + "/" + partName(i))
				if want := min(size, len(blob)-i*size); len(part) < want || len(part) > want+want/1000+1000 {
					t.Errorf("part %d of %d bytes has %d", i, want, len(part))
				}
			}
			r, err := fetch(t, w.store, time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(r.Snapshot); err != nil || !bytes.Equal(got, blob) || r.revision() != 10 {
				t.Errorf("parts of %d bytes: %d of %d bytes are restored, and revision %d, %v", size, len(got), len(blob),
					r.revision(), err)
			}
		})
	}
}

// slowStore is a store that answers each Get after a time, and counts the ones at once.
type slowStore struct {
	*memoryStore
	mu        sync.Mutex
	now, most int
}

func (s *slowStore) Get(ctx context.Context, name string) ([]byte, error) {
	s.mu.Lock()
	s.now++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.now--
		s.mu.Unlock()
	}()
	if !pause.For(ctx, 40*time.Millisecond) {
		return nil, ctx.Err()
	}
	return s.memoryStore.Get(ctx, name)
}

// A restore reads several objects at once, and no more: a store in a cloud answers each request after some time, and
// the objects that were read and not used yet are in memory.
func TestARestoreReadsSeveralObjectsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write(1600, time.Second)
		w.stop()
		chains, err := Chains(t.Context(), w.store, testPlane)
		if err != nil || len(chains) != 1 || chains[0].Segments < 195 {
			t.Fatalf("%+v, %v", chains, err)
		}
		slow := &slowStore{memoryStore: w.store}
		all := chains[0].Segments
		for at, segments := range map[time.Time]int{{}: all, time.Now().Add(-time.Minute): all - 10,
			chains[0].Taken.Add(8 * time.Second): 2} {
			begun := time.Now()
			slow.most = 0
			if _, err := fetch(t, slow, at); err != nil {
				t.Fatal(err)
			}
			most := time.Duration(segments/4+20) * 40 * time.Millisecond
			if took := time.Since(begun); took > most || slow.most > 4 {
				t.Errorf("%d segments were read in %s, %s at most; %d at once", segments, took, most, slow.most)
			}
			synctest.Wait()
			if slow.now != 0 {
				t.Errorf("%d reads go on after the restore", slow.now)
			}
		}
	})
}

// An object that cannot be read ends a restore with its error, whichever it is.
func TestAReadAheadHasTheErrorOfItsObject(t *testing.T) {
	store := newMemoryStore()
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("%02d", i))
		store.replace(names[i], []byte(names[i]))
	}
	store.replace("07", nil)
	store.replace("other", []byte("other"))
	a := newReadAhead(t.Context(), store, names)
	defer a.close()
	for i, name := range names {
		if got, err := a.Get(t.Context(), "other"); err != nil || string(got) != "other" {
			t.Errorf("another object: %q, %v", got, err)
		}
		if got, err := a.Get(t.Context(), name); string(got) != string(store.content(name)) || (err != nil) != (i == 7) {
			t.Errorf("object %s: %q, %v", name, got, err)
		}
	}
	if _, err := a.Get(t.Context(), "none"); err == nil {
		t.Error("an object that is not there has no error")
	}
}

// narrowStore fails each read that is not alone, as a connection does that is too slow for two reads within their time
// limits.
type narrowStore struct {
	*memoryStore
	now atomic.Int32
}

func (s *narrowStore) Get(ctx context.Context, name string) ([]byte, error) {
	defer s.now.Add(-1)
	isAlone := s.now.Add(1) == 1
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Second):
	}
	if isAlone = isAlone && s.now.Load() == 1; !isAlone {
		return nil, errors.New("the read took too long")
	}
	return s.memoryStore.Get(ctx, name)
}

func TestAReadAheadThatFailsGoesOnOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &narrowStore{memoryStore: newMemoryStore()}
		var names []string
		for i := range 10 {
			names = append(names, fmt.Sprint(i))
			store.replace(names[i], []byte(names[i]))
		}
		a := newReadAhead(t.Context(), store, names)
		defer a.close()
		for _, name := range names {
			if got, err := a.Get(t.Context(), name); err != nil || string(got) != name {
				t.Errorf("object %s: %q, %v", name, got, err)
			}
		}
	})
}
