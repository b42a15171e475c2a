package backups

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
)

// mapStore is a Store in memory that fails while failure is set.
type mapStore struct {
	mu      sync.Mutex
	objects map[string]string
	failure error
}

func (m *mapStore) Put(_ context.Context, name string, content []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure == nil {
		m.objects[name] = string(content)
	}
	return m.failure
}

func (m *mapStore) Get(_ context.Context, name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if content, ok := m.objects[name]; ok || m.failure != nil {
		return []byte(content), m.failure
	}
	return nil, backup.ErrNotFound
}

func (m *mapStore) List(_ context.Context, prefix string) (names []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.objects {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, m.failure
}

func (m *mapStore) Delete(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure == nil {
		delete(m.objects, name)
	}
	return m.failure
}

func (m *mapStore) setFailure(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failure = err
}

func (m *mapStore) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.objects)
}

// The backups of a deleted cluster expire a week later, also when the store failed at the deletion.
func TestTheBackupsOfADeletedClusterExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &mapStore{objects: map[string]string{"a/hc/20260101T000000.000Z-00000000/chain": "x"}}
		planes := t.TempDir()
		b := New(Options{
			Store: store, Spool: t.TempDir(), Dir: func(id controlplane.ID) string { return planes + "/" + id.Name },
			Dial: func(controlplane.ID) (*grpc.ClientConn, error) { return nil, errors.New("no plane") },
		})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx, func(controlplane.ID) {}) }()
		synctest.Wait()
		store.setFailure(errors.New("no store"))
		b.Deleted(controlplane.ID{Namespace: "a", Name: "hc"})
		<-time.After(time.Minute)
		store.setFailure(nil)
		<-time.After(time.Minute)
		if n := store.count(); n != 2 {
			t.Errorf("%d objects after the deletion, want the chain and the tombstone", n)
		}
		<-time.After(backup.KeepDeleted - time.Hour)
		if n := store.count(); n != 2 {
			t.Errorf("%d objects before the end of the week", n)
		}
		<-time.After(3 * time.Hour)
		if n := store.count(); n != 0 {
			t.Errorf("%d objects after a week", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
