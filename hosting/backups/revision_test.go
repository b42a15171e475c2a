package backups

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"atoll.dev/backup"
	"atoll.dev/envelope"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
)

// restoresAboveServed restores a running plane whose revisions are ahead of the clock: it was restored while the clock
// was ahead. The next data goes on above all that the plane has served, whether the plane runs or has ended.
func restoresAboveServed(t *testing.T, store backup.Store, keys envelope.KMS, c plane.Config, end func()) {
	binary, err := planetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	id, staging := controlplane.ID{Namespace: "clusters-b", Name: "hc-b"}, t.TempDir()
	b := New(Options{
		Store: store, KMS: keys, Spool: filepath.Join(t.TempDir(), "spool"),
		Programs: map[controlplane.Version]string{"test": binary},
		Staging:  func(_ controlplane.ID, order string) string { return filepath.Join(staging, order) },
		Dial:     func(_ controlplane.ID, w backup.Wrap) (*grpc.ClientConn, error) { return c.DialStore(w) },
	})
	b.Begin(id, "1.36.3")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx, func(controlplane.ID) {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	await := func(what string, f func() error) {
		t.Helper()
		poll := time.NewTicker(50 * time.Millisecond)
		defer poll.Stop()
		for limit := time.Now().Add(3 * time.Minute); ; <-poll.C {
			err := f()
			if err == nil {
				return
			}
			if time.Now().After(limit) {
				t.Fatalf("waited too long for %s: %v", what, err)
			}
		}
	}
	stored := func(after time.Time) {
		t.Helper()
		await("the backup", func() error {
			if s, _ := b.State(id); !s.Stored.After(after) {
				return errors.New("it has not come so far")
			}
			return nil
		})
	}
	stored(time.Time{})
	at := time.Now().Truncate(time.Second).Add(time.Second)
	stored(at)
	created, err := configMaps(t, c).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "later"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	served, err := strconv.ParseInt(created.GetResourceVersion(), 10, 64)
	if err != nil || served <= backup.NextRevision(time.Now(), 0) {
		t.Fatalf("the plane's revision is %d, %v; it should be ahead of the clock", served, err)
	}
	restore := func(order string) {
		t.Helper()
		o := controlplane.RestoreOrder{ID: order, Source: id, At: at, Release: "test"}
		await("the data of "+order, func() error {
			switch p := b.Prepare(id, o); p.State {
			case controlplane.PreparationDone:
				return nil
			case controlplane.PreparationFailed:
				t.Fatalf("%s: %s", order, p.Message)
			}
			return errors.New("it is not made yet")
		})
		made, err := readPrepared(filepath.Join(staging, order))
		if err != nil || made.Next <= served {
			t.Errorf("%s: the data goes on with revision %d after %d, %v", order, made.Next, served, err)
		}
	}
	restore("runs")
	stored(time.Now())
	end()
	b.End(id)
	restore("ended")
}
