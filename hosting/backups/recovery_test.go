package backups

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/backup"
	"atoll.dev/envelope"
	"atoll.dev/hosting/controlplane"
)

// namesOnlyStore lists a chain of each plane, and counts the objects that it does not return.
type namesOnlyStore struct {
	mu    sync.Mutex
	asked map[string]int // by plane
}

func (s *namesOnlyStore) Get(_ context.Context, name string) ([]byte, error) {
	if strings.HasPrefix(name, ".deleted/") {
		return nil, backup.ErrNotFound
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[strings.Split(name, "/")[1]]++
	return nil, errors.New("the store is overloaded")
}

func (s *namesOnlyStore) List(_ context.Context, prefix string) ([]string, error) {
	if strings.HasPrefix(prefix, ".deleted/") {
		return nil, nil
	}
	return []string{prefix + "20270102T150405.000Z-00000000/chain"}, nil
}

func (s *namesOnlyStore) Put(context.Context, string, []byte) error { return errors.ErrUnsupported }
func (s *namesOnlyStore) Delete(context.Context, string) error      { return errors.ErrUnsupported }
func (s *namesOnlyStore) Age(context.Context, string) (time.Duration, error) {
	return 0, errors.ErrUnsupported
}

// A store that lists its objects and does not return them for a long time makes no recovery fail: nobody would order it
// again. All planes are tried meanwhile, more of them than there are places.
func TestARecoveryWaitsForItsBackup(t *testing.T) {
	keyFile := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keyFile, []byte("k1 "+strings.Repeat("QUFB", 10)+"QUE=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := envelope.ReadKeyFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		store := &namesOnlyStore{asked: map[string]int{}}
		b := New(Options{Store: store, KMS: keys, Spool: filepath.Join(dir, "spool"),
			Staging: func(id controlplane.ID, order string) string { return filepath.Join(dir, id.Name, order) }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx, func(controlplane.ID) {}) }()
		synctest.Wait()
		var ids []controlplane.ID
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			ids = append(ids, controlplane.ID{Namespace: "clusters", Name: name})
		}
		prepare := func(id controlplane.ID) controlplane.Preparation {
			return b.Prepare(id, controlplane.RestoreOrder{ID: controlplane.Recovery, Source: id})
		}
		for _, id := range ids {
			prepare(id)
		}
		<-time.After(time.Hour) // of the bubble
		synctest.Wait()
		for _, id := range ids {
			if p := prepare(id); p.State != controlplane.PreparationWaits || p.Message == "" {
				t.Errorf("the recovery of %s: %+v", id, p)
			}
			store.mu.Lock()
			if n := store.asked[id.Name]; n < 30 {
				t.Errorf("the store was asked %d times in an hour for the backup of %s", n, id)
			}
			store.mu.Unlock()
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
