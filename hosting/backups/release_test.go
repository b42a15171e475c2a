package backups

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"atoll.dev/backup"
	"atoll.dev/backup/storetest"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/plane/planetest"
)

// A plane that has become ready with another release begins a new chain, also when it ran before Run. Begin asks nobody
// for the record of the plane, however often it is repeated: only each new chain does.
func TestANewReleaseBeginsAChain(t *testing.T) {
	p := planetest.Shared(t)
	store := storetest.NewMemory()
	var reads atomic.Int64
	b := New(Options{Store: store, KMS: testKeys(t), Spool: filepath.Join(t.TempDir(), "spool"), Dial: dialTo(p.Config),
		Record: func(controlplane.ID) (controlplane.LastStart, error) {
			reads.Add(1)
			return controlplane.LastStart{Served: "1.36.3"}, nil
		}})
	id := controlplane.ID{Namespace: "clusters-a", Name: "hc-a"}
	b.Begin(id, "1.36.3")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	listed := make(chan struct{}, 1)
	go func() {
		ended <- b.Run(ctx, func(controlplane.ID) {
			select {
			case listed <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	await := func(chains int) {
		t.Helper()
		limit := time.After(3 * time.Minute)
		for {
			if w, ok := b.Window(id); ok && len(w.Chains) == chains {
				break
			}
			select {
			case <-listed:
			case <-limit:
				t.Fatalf("%d chains are not complete", chains)
			}
		}
		if list, err := backup.Chains(t.Context(), store, backup.Plane(id)); err != nil || len(list) != chains {
			t.Fatalf("%d chains, not %d, %v", len(list), chains, err)
		}
		if n := reads.Load(); n != int64(chains) {
			t.Errorf("with %d chains the record was read %d times", chains, n)
		}
	}
	await(1)
	for range 10 {
		b.Begin(id, "1.36.3")
		b.Begin(id, "") // the plane is restarted
	}
	await(1)
	b.Begin(id, "1.36.9")
	await(2)
}
