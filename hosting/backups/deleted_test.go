package backups

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"atoll.dev/backup"
	"atoll.dev/backup/storetest"
	"atoll.dev/hosting/controlplane"
)

// down makes each call of a store fail.
func down(string, string) error { return errors.New("no store") }

// The backups of a deleted cluster expire a week later, also when the store failed at the deletion.
func TestTheBackupsOfADeletedClusterExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewMemory()
		store.Replace("a/hc/20260101T000000.000Z-00000000/chain", []byte("x"))
		planes := t.TempDir()
		b := New(Options{
			Store: store, Spool: t.TempDir(), Dir: func(id controlplane.ID) string { return planes + "/" + id.Name },
			Dial: func(controlplane.ID, backup.Wrap) (*grpc.ClientConn, error) { return nil, errors.New("no plane") },
		})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx, func(controlplane.ID) {}) }()
		synctest.Wait()
		store.SetFault(down)
		b.Deleted(controlplane.ID{Namespace: "a", Name: "hc"})
		<-time.After(time.Minute)
		store.SetFault(nil)
		<-time.After(time.Minute)
		if n := len(store.Objects()); n != 2 {
			t.Errorf("%d objects after the deletion, want the chain and the tombstone", n)
		}
		<-time.After(backup.KeepDeleted - time.Hour)
		if n := len(store.Objects()); n != 2 {
			t.Errorf("%d objects before the end of the week", n)
		}
		<-time.After(3 * time.Hour)
		if n := len(store.Objects()); n != 0 {
			t.Errorf("%d objects after a week", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// Hosting is killed after it has deleted a plane's data and before the store has the tombstone: the next process stores
// the tombstone, with the owner of the deleted data. While the data is there, the tombstone stays.
func TestADeletionOutlivesItsProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, keys, planes, spool := storetest.NewMemory(), testKeys(t), t.TempDir(), t.TempDir()
		dir := func(id controlplane.ID) string { return planes + "/" + id.Name }
		start := func() (b *Backups, kill func()) {
			b = New(Options{Store: store, KMS: keys, Spool: spool, Dir: dir, State: dir,
				Dial: func(controlplane.ID, backup.Wrap) (*grpc.ClientConn, error) { return nil, errors.New("no plane") }})
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- b.Run(ctx, func(controlplane.ID) {}) }()
			synctest.Wait()
			return b, func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
		}
		id := controlplane.ID{Namespace: "a", Name: "hc.x"}
		b, kill := start()
		if err := b.take(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		store.Replace("a/hc.x/20260101T000000.000Z-00000000/chain", []byte("x"))
		b.Deleted(id)
		if err := b.claimant(id).Claim(t.Context()); err == nil { // the follower has not ended yet
			t.Error("a claim after the deletion draws, and the tombstone would not be of the last draw")
		}
		<-time.After(3 * time.Hour) // it takes long to stop the plane, and the collector runs meanwhile
		if exists, err := b.records.Exists(t.Context(), backup.Plane(id)); exists || err != nil {
			t.Errorf("the tombstone is not there: %v, %v", exists, err)
		}
		if err := store.Delete(t.Context(), ".deleted/a/hc.x"); err != nil { // as if the store had been away until now
			t.Fatal(err)
		}
		store.SetFault(down)
		kill()
		if err := os.RemoveAll(dir(id)); err != nil {
			t.Fatal(err)
		}
		b, kill = start()
		b.Deleted(id) // hosting deletes the plane again, and finds no data
		<-time.After(time.Minute)
		store.SetFault(nil)
		<-time.After(time.Minute)
		if exists, err := b.records.Exists(t.Context(), backup.Plane(id)); exists || err != nil {
			t.Errorf("the next process has stored no tombstone: %v, %v", exists, err)
		}
		if notes, err := os.ReadDir(filepath.Join(spool, deletionsName)); len(notes) != 0 || err != nil {
			t.Errorf("what is left on the disk: %v, %v", notes, err)
		}
		<-time.After(backup.KeepDeleted + 3*time.Hour)
		if n := len(store.Objects()); n != 0 {
			t.Errorf("%d objects after a week: %v", n, store.Objects())
		}
		kill()
	})
}

// The follower of a deleted plane runs on for some seconds, to store the last changes. It draws no owner for data that
// is gone: the owner's file would stay, and the tombstone would be of another owner, so that the backups never expire.
func TestTheFollowerOfADeletedPlaneDrawsNoOwnerI9(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, planes := storetest.NewMemory(), t.TempDir()
		dir := func(id controlplane.ID) string { return filepath.Join(planes, id.Name) }
		b := New(Options{Store: store, KMS: testKeys(t), Spool: t.TempDir(), Dir: dir, State: dir,
			Dial: func(controlplane.ID, backup.Wrap) (*grpc.ClientConn, error) { return nil, errors.New("no plane") }})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx, func(controlplane.ID) {}) }()
		synctest.Wait()
		id := controlplane.ID{Namespace: "a", Name: "hc"}
		b.Begin(id, "1.36.3")
		<-time.After(25 * time.Second) // it claims after 15 s and after 30 s
		before, err := b.readIdentity(id)
		if err != nil || before.Owner == "" {
			t.Fatalf("the follower of a running plane has drawn %v, %v", before, err)
		}
		b.Deleted(id)
		b.End(id)
		if err := os.RemoveAll(dir(id)); err != nil {
			t.Fatal(err)
		}
		b.Deleted(id)
		<-time.After(time.Minute)
		if left, err := os.ReadDir(planes); err != nil || len(left) > 0 {
			t.Errorf("the deleted plane has left %v, %v", left, err)
		}
		if exists, err := b.records.Exists(t.Context(), backup.Plane(id)); exists || err != nil {
			t.Errorf("the store has no tombstone of the plane: %v, %v", exists, err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
