package backup

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// A list shows the second in which a chain begins. That second restores, also when etcd began the snapshot later: to
// the first moment of the chain. The second before is outside.
func TestTheSecondInWhichAChainBeginsCanBeRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, dial, stopEtcd := startEtcd()
		w := &world{t: t, etcd: etcd, store: newMemoryStore(), stopEtcd: stopEtcd}
		t.Cleanup(func() { w.stop(); stopEtcd() })
		etcd.snapshot = func(s pb.Maintenance_SnapshotServer) error {
			sleep(1500 * time.Millisecond) // etcd has much to do
			return s.Send(&pb.SnapshotResponse{Blob: fmt.Appendf(nil, "snapshot of revision %d\n", etcd.revision())})
		}
		w.f = New(Options{Plane: testPlane, Dial: dial, Store: w.store, KMS: testKeys(t), Spool: t.TempDir()})
		w.write(3, 100*time.Millisecond)
		w.run()
		w.write(100, 300*time.Millisecond)
		w.stop()
		outage := time.Now()
		sleep(time.Minute + 200*time.Millisecond)
		w.run() // and a second chain, behind a time that is in none
		w.write(100, 300*time.Millisecond)
		sleep(10 * time.Second)

		chains, err := Chains(t.Context(), w.store, testPlane)
		if err != nil || len(chains) != 2 {
			t.Fatalf("%d chains, %v", len(chains), err)
		}
		for _, c := range chains {
			listed := c.Taken.Truncate(time.Second)
			for at := listed; at.Before(listed.Add(5 * time.Second)); at = at.Add(time.Second) {
				r, err := fetch(t, w.store, at)
				if err != nil {
					t.Errorf("%s of the chain of %s: %v", at, listed, err)
					continue
				}
				least, most := w.lastBefore(at), w.lastBefore(r.Sample.Time.Add(time.Second))
				if r.Chain != c.Name || r.revision() < least || r.revision() > most || r.Sample.Time.Sub(at) > 3*time.Second {
					t.Errorf("%s: restored from %s to %s, revision %d, want %d to %d", at, r.Chain, r.Sample.Time,
						r.revision(), least, most)
				}
			}
			if _, err := fetch(t, w.store, listed.Add(-time.Second)); !errors.Is(err, ErrOutside) {
				t.Errorf("the second before the chain of %s: %v", listed, err)
			}
		}
		if _, err := fetch(t, w.store, outage.Add(30*time.Second)); !errors.Is(err, ErrOutside) {
			t.Errorf("a moment of the outage: %v", err)
		}
	})
}
