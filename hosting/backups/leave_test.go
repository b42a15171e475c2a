package backups

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/backup"
	"atoll.dev/backup/storetest"
	"atoll.dev/envelope"
	"atoll.dev/hosting/controlplane"
)

// An order to move that is withdrawn while the plane stops leaves no trace: the plane may run again, and nothing makes
// it leave later. An order that is withdrawn after the note on the disk brings the plane back, and never happens again.
func TestAWithdrawnMoveNeverHappensLater(t *testing.T) {
	dir := t.TempDir()
	makeFile(t, filepath.Join(dir, "hc", "etcd", "member", "snap", "db"), "data")
	makeFile(t, filepath.Join(dir, "hc", "pki", "ca.crt"), "authority")
	keys, err := envelope.ParseKeys(envelope.NewKeyLine("k1"))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		store, id := storetest.NewMemory(), controlplane.ID{Namespace: "a", Name: "hc"}
		b := New(Options{Store: store, KMS: keys, Spool: filepath.Join(dir, "spool"),
			Dir:   func(id controlplane.ID) string { return filepath.Join(dir, id.Name) },
			State: func(id controlplane.ID) string { return filepath.Join(dir, "state", id.Name) }})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx, func(controlplane.ID) {}) }()
		synctest.Wait()
		state := func(want controlplane.LeavingState) {
			t.Helper()
			<-time.After(10 * time.Second)
			if l := b.Leave(id, "m1"); l.State != want {
				t.Fatalf("the move is %+v, want %s", l, want)
			}
		}
		b.Leave(id, "m1")
		state(controlplane.LeavingWaits)
		if err := backup.PutHandoverRequest(ctx, store, keys, backup.Plane(id), "m1",
			backup.HandoverRequest{Endpoint: "127.0.0.1:2"}); err != nil {
			t.Fatal(err)
		}
		state(controlplane.LeavingStops)
		end, err := lockData(filepath.Join(dir, "hc")) // a process that has not ended
		if err != nil {
			t.Fatal(err)
		}
		b.Stopped(id, controlplane.Shown{})
		state(controlplane.LeavingStops)
		b.Stay(id)
		end()
		<-time.After(time.Hour)
		if _, err := os.Lstat(filepath.Join(dir, "state", "hc", leftName)); err == nil || b.IsSuperseded(id) {
			t.Error("a plane has left after its order was withdrawn")
		}
		b.Leave(id, "m1")
		state(controlplane.LeavingStops)
		b.Stopped(id, controlplane.Shown{})
		state(controlplane.LeavingDone)
		if !b.IsSuperseded(id) {
			t.Error("a plane that has left may run again")
		}
		b.Stay(id)
		<-time.After(10 * time.Second)
		if b.IsSuperseded(id) {
			t.Error("a plane whose move was withdrawn may not run again")
		}
		state(controlplane.LeavingRefused)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
