package backups

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"atoll.dev/backup"
	"atoll.dev/backup/storetest"
	"atoll.dev/envelope"
	"atoll.dev/hosting/controlplane"
)

func testKeys(t *testing.T) *envelope.KeyFile {
	t.Helper()
	keys, err := envelope.ParseKeys(envelope.NewKeyLine("k1"))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// A plane that is recovered keeps the backups when its earlier management cluster comes back with data of a version
// without owners. A plane of the same name that is new takes them.
func TestI1ARecoveredPlaneStays(t *testing.T) {
	dir, store, keys := t.TempDir(), storetest.NewMemory(), testKeys(t)
	machine := func(name string) *Backups {
		return New(Options{Store: store, KMS: keys,
			State: func(id controlplane.ID) string { return filepath.Join(dir, name, id.Name) }})
	}
	claim := func(b *Backups, id controlplane.ID) error {
		return b.claimant(id).Claim(context.Background())
	}
	id, ctx := controlplane.ID{Namespace: "a", Name: "hc"}, context.Background()
	first, second := machine("first"), machine("second")
	if err := second.takeNew(ctx, id); err != nil || len(store.Objects()) != 0 {
		t.Errorf("a new plane without an owner: %v, %v", err, store.Objects())
	}
	if err := second.take(ctx, id); err != nil {
		t.Fatal(err)
	}
	if err := claim(first, id); !errors.Is(err, backup.ErrSuperseded) {
		t.Errorf("older data claims a recovered plane: %v", err)
	}
	if err := claim(second, id); err != nil {
		t.Errorf("the recovered plane: %v", err)
	}
	third := machine("third")
	if err := third.takeNew(ctx, id); err != nil {
		t.Error(err)
	}
	if err := claim(third, id); err != nil {
		t.Errorf("a new plane of the same name: %v", err)
	}
}

// A disk that cannot say whether a plane has left lets no plane run.
func TestI1ADiskWithoutAnAnswerStartsNoPlane(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(state, nil, 0o600); err != nil { // no directory: the error is not that a file is missing
		t.Fatal(err)
	}
	b := New(Options{State: func(controlplane.ID) string { return state }})
	if !b.IsSuperseded(controlplane.ID{Namespace: "a", Name: "hc"}) {
		t.Error("a plane runs though its notes cannot be read")
	}
}

// The follower of a plane that starts again claims while the one before it ends: no draw of either is lost, so the
// plane is never taken for a copy of itself.
func TestFollowersOfOneMachineAreNoCopies(t *testing.T) {
	dir, store := t.TempDir(), storetest.NewMemory()
	b := New(Options{Store: store, KMS: testKeys(t),
		State: func(id controlplane.ID) string { return filepath.Join(dir, id.Name) }})
	id := controlplane.ID{Namespace: "a", Name: "hc"}
	for range 10 {
		var claims sync.WaitGroup
		for range 4 {
			claims.Go(func() {
				if err := b.claimant(id).Claim(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		claims.Wait()
	}
	if err := b.claimant(id).Claim(context.Background()); err != nil {
		t.Errorf("after many claims: %v", err)
	}
}
