package backups

import (
	"context"
	"errors"
	"math"
	"net"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"atoll.dev/backup"
	"atoll.dev/backup/storetest"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/plane"
)

// The data of a scratch plane is not made while a customer's restore is made, and its making ends when one begins. The
// restore waits for nothing.
func TestADrillYieldsToARestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b := New(Options{Store: storetest.NewMemory(), Spool: dir,
			Staging: func(controlplane.ID, string) string { return dir + "/staging" },
			Dial: func(controlplane.ID, backup.Wrap) (*grpc.ClientConn, error) { // the plane's etcd does not answer
				return grpc.NewClient("passthrough:///etcd", grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
						<-ctx.Done()
						return nil, ctx.Err()
					}))
			}})
		scratch := controlplane.ID{Namespace: controlplane.ScratchNamespace, Name: "drill"}
		prepare := func() error {
			_, err := b.PrepareScratch(t.Context(), scratch, controlplane.RestoreOrder{ID: "drill"})
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- prepare() }()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("the drill has ended before the restore: %v", err)
		default:
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // the restore itself is not the subject
		b.preparations <- struct{}{}
		b.stopDrill()
		if err := <-ended; !errors.Is(err, controlplane.ErrNoRoom) {
			t.Errorf("when a restore begins: %v", err)
		}
		if err := prepare(); !errors.Is(err, controlplane.ErrNoRoom) {
			t.Errorf("during a restore: %v", err)
		}
		<-b.preparations
		if _, err := b.PrepareScratch(ctx, scratch, controlplane.RestoreOrder{}); errors.Is(err, controlplane.ErrNoRoom) ||
			err == nil {
			t.Errorf("after the restore, when hosting ends: %v", err)
		}
	})
}

func TestADrillLeavesTheDiskToPlanes(t *testing.T) {
	if err := checkRoom(t.TempDir(), math.MaxInt64/8); !errors.Is(err, controlplane.ErrNoRoom) {
		t.Errorf("a plane larger than the disk: %v", err)
	}
}

// A scratch plane has no backup, and ends none.
func TestAScratchPlaneHasNoBackup(t *testing.T) {
	b := New(Options{Store: storetest.NewMemory()})
	id := controlplane.ID{Namespace: controlplane.ScratchNamespace, Name: "drill"}
	b.Begin(id, "1.36.3")
	if len(b.early) > 0 || len(b.followers) > 0 {
		t.Errorf("a backup of a scratch plane begins: %v, %v", b.early, b.followers)
	}
}

// dialTo returns a function that connects to the etcd of one plane.
func dialTo(c plane.Config) func(controlplane.ID, backup.Wrap) (*grpc.ClientConn, error) {
	return func(_ controlplane.ID, w backup.Wrap) (*grpc.ClientConn, error) { return c.DialStore(w) }
}
