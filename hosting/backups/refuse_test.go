package backups

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/backup"
	"atoll.dev/backup/storetest"
	"atoll.dev/envelope"
	"atoll.dev/hosting/controlplane"
)

// A plane whose data cannot be packed stays where it is, whenever that shows: before the plane is stopped, after it has
// stopped, and after the note that it never runs here again. The same order does not stop it again after a restart of
// hosting, and another order is tried.
func TestAPlaneWhoseDataCannotMoveStays(t *testing.T) {
	type stage string
	for _, c := range []stage{"while it runs", "stopped", "after the note"} {
		t.Run(string(c), func(t *testing.T) {
			dir := t.TempDir()
			db := filepath.Join(dir, "hc", "etcd", "member", "snap", "db")
			huge := filepath.Join(dir, "hc", "etcd", "huge")
			makeFile(t, db, "data")
			makeFile(t, filepath.Join(dir, "hc", "pki", "ca.crt"), "authority")
			keys, err := envelope.ParseKeys(envelope.NewKeyLine("k1"))
			if err != nil {
				t.Fatal(err)
			}
			grow := func() {
				makeFile(t, huge, "")
				if err := os.Truncate(huge, packBytes); err != nil { // sparse: it takes no room on the disk
					t.Error(err)
				}
			}
			synctest.Test(t, func(t *testing.T) {
				store, id := storetest.NewMemory(), controlplane.ID{Namespace: "a", Name: "hc"}
				o := Options{Store: store, KMS: keys, Spool: filepath.Join(dir, "spool"),
					Dir:   func(id controlplane.ID) string { return filepath.Join(dir, id.Name) },
					State: func(id controlplane.ID) string { return filepath.Join(dir, "state", id.Name) }}
				start := func() (b *Backups, end func()) {
					b = New(o)
					ctx, cancel := context.WithCancel(context.Background())
					done := make(chan error, 1)
					go func() { done <- b.Run(ctx, func(controlplane.ID) {}) }()
					synctest.Wait()
					return b, func() {
						cancel()
						if err := <-done; err != nil {
							t.Error(err)
						}
					}
				}
				b, end := start()
				state := func(move string, want controlplane.LeavingState) controlplane.Leaving {
					t.Helper()
					<-time.After(10 * time.Second)
					l := b.Leave(id, move)
					if l.State != want {
						t.Fatalf("the move is %+v, want %s", l, want)
					}
					return l
				}
				request := func(move string) {
					t.Helper()
					if err := backup.PutHandoverRequest(context.Background(), store, keys, backup.Plane(id), move,
						backup.HandoverRequest{Endpoint: "127.0.0.1:2"}); err != nil {
						t.Fatal(err)
					}
				}
				if c == "while it runs" {
					grow()
				}
				b.Leave(id, "m1")
				request("m1")
				switch c {
				case "stopped":
					state("m1", controlplane.LeavingStops)
					grow()
					b.Stopped(id, controlplane.Shown{})
				case "after the note":
					state("m1", controlplane.LeavingStops)
					end()
					// Hosting was killed between the note and the end of the archive.
					if err := b.writeLeft(id, left{Move: "m1", Endpoint: "127.0.0.1:2"}); err != nil {
						t.Fatal(err)
					}
					grow()
					b, end = start()
					if !b.IsSuperseded(id) {
						t.Fatal("the plane may run with the note")
					}
					b.Leave(id, "m1")
					state("m1", controlplane.LeavingStops)
					b.Stopped(id, controlplane.Shown{})
				}
				l := state("m1", controlplane.LeavingRefused)
				if !strings.Contains(l.Message, "more than 16 GiB") {
					t.Errorf("the message does not name the reason: %s", l.Message)
				}
				if b.IsSuperseded(id) {
					t.Error("the plane may not run here again")
				}
				end()
				b, end = start()
				defer func() { end() }()
				state("m1", controlplane.LeavingRefused)
				if b.IsSuperseded(id) {
					t.Error("the plane may not run here after a restart")
				}
				if _, err := store.Get(context.Background(), "a/hc/move-m1/handover"); !errors.Is(err, backup.ErrNotFound) {
					t.Errorf("the other side can have the plane: %v", err)
				}
				if err := os.Remove(huge); err != nil {
					t.Fatal(err)
				}
				b.Stay(id)
				request("m2")
				state("m2", controlplane.LeavingWaits)
				state("m2", controlplane.LeavingStops)
				b.Stopped(id, controlplane.Shown{})
				state("m2", controlplane.LeavingDone)
			})
		})
	}
}

// brokenEnd is a store that does not answer when the list of a handover's parts is stored, and stores it all the same.
type brokenEnd struct {
	*storetest.Memory
	isBroken atomic.Bool
}

func (s *brokenEnd) Put(ctx context.Context, name string, content []byte) error {
	err := s.Memory.Put(ctx, name, content)
	if s.isBroken.Load() && strings.HasSuffix(name, "/handover") {
		return errors.Join(err, io.ErrUnexpectedEOF)
	}
	return err
}

// A plane never runs again where it was, once the other side may have its data: also when the store gave no answer, and
// the data cannot be packed the next time.
func TestAPlaneThatTheOtherSideMayHaveStaysStopped(t *testing.T) {
	dir := t.TempDir()
	makeFile(t, filepath.Join(dir, "hc", "etcd", "member", "snap", "db"), "data")
	makeFile(t, filepath.Join(dir, "hc", "pki", "ca.crt"), "authority")
	keys, err := envelope.ParseKeys(envelope.NewKeyLine("k1"))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		store := &brokenEnd{Memory: storetest.NewMemory()}
		id := controlplane.ID{Namespace: "a", Name: "hc"}
		store.isBroken.Store(true)
		b := New(Options{Store: store, KMS: keys, Spool: filepath.Join(dir, "spool"),
			Dir:   func(id controlplane.ID) string { return filepath.Join(dir, id.Name) },
			State: func(id controlplane.ID) string { return filepath.Join(dir, "state", id.Name) }})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx, func(controlplane.ID) {}) }()
		synctest.Wait()
		b.Leave(id, "m1")
		if err := backup.PutHandoverRequest(ctx, store, keys, backup.Plane(id), "m1",
			backup.HandoverRequest{Endpoint: "127.0.0.1:2"}); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Second)
		b.Stopped(id, controlplane.Shown{})
		<-time.After(10 * time.Second)
		huge := filepath.Join(dir, "hc", "etcd", "huge")
		makeFile(t, huge, "")
		if err := os.Truncate(huge, packBytes); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		if l := b.Leave(id, "m1"); l.State != controlplane.LeavingStores || !b.IsSuperseded(id) {
			t.Errorf("the plane may run on two management clusters: %+v", l)
		}
		if err := os.Remove(huge); err != nil {
			t.Fatal(err)
		}
		store.isBroken.Store(false)
		<-time.After(time.Minute)
		if l := b.Leave(id, "m1"); l.State != controlplane.LeavingDone {
			t.Errorf("the move does not go on: %+v", l)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
