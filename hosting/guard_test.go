package hosting

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/router"
)

// routes are Routes that count the tables that they get.
type routes struct {
	noRoutes
	set atomic.Int32
}

func (r *routes) Set([]router.Route) { r.set.Add(1) }

// A plane with a damaged record does not keep the routes of other planes from the
// router, and can be deleted.
func TestI9ADamagedRecordBlocksNoOtherCluster(t *testing.T) {
	r := &routes{}
	w := newWorld(t, "damaged", func(o *Options) { o.Routes = r })
	w.stop()
	bad := w.create("bad", nil)
	w.create("good", map[string]any{"pausedUntil": "true"})
	dir := w.runtime.StateDir(bad)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hosting.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.set.Store(0)
	w.start()
	w.wait("the routes", func() error {
		if r.set.Load() == 0 {
			return errStill
		}
		return nil
	})
	w.delete(bad)
	w.gone(bad)
}

// A disk that is not mounted must not look like a new cluster: no empty plane is
// started.
func TestAPlaneWithMissingDataIsNotReplaced(t *testing.T) {
	w := newWorld(t, "empty")
	w.stop()
	key := w.create("one", nil)
	status := `{"status":{"version":{"desired":{"version":"1.36.3","image":"i"},"observedGeneration":1,` +
		`"availableUpdates":null,` +
		`"history":[{"state":"Completed","startedTime":"2026-11-21T12:00:00Z","completionTime":"2026-11-21T12:00:01Z",` +
		`"version":"1.36.3","image":"i","verified":false}]}}}`
	_, err := w.admin.Resource(hypershift.HostedClusters()).Namespace(key.Namespace).Patch(t.Context(), key.Name,
		types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	w.condition(key, hypershift.Available, "False", string(controlplane.DataMissing))
	w.condition(key, hypershift.InfrastructureReady, "False", string(controlplane.DataMissing))
	if ps := w.processes(); len(ps) > 0 {
		t.Errorf("there is a plane: %v", ps)
	}
	if _, err := os.Stat(filepath.Join(w.planes.Dir, "planes", key.Namespace)); err == nil {
		t.Error("a plane's directory was made")
	}
	w.delete(key)
	w.gone(key)
}

// The deletion of a plane completes, also if somebody removes the finalizer and creates a
// HostedCluster of the same name meanwhile: the new one never gets the data of the first.
func TestI9ANewClusterNeverGetsTheDataOfADeletedOne(t *testing.T) {
	w := newMemoryWorld(t, "again")
	key := w.create("one", nil)
	_, c := w.available(key)
	w.keep(c, "of-the-first")
	w.machine.Pause()
	w.delete(key)
	w.wait("the order to discard the plane", func() error {
		if !w.machine.IsDiscarding(key) {
			return errStill
		}
		return nil
	})
	w.patch(key, `{"metadata":{"finalizers":null}}`)
	hc := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "hypershift.openshift.io/v1beta1",
		"kind":       "HostedCluster",
		"metadata":   map[string]any{"name": key.Name},
		"spec":       map[string]any{"release": map[string]any{"image": "atoll.dev/release:1.36.3"}},
	}}
	clusters := w.admin.Resource(hypershift.HostedClusters()).Namespace(key.Namespace)
	w.wait("the second HostedCluster", func() error {
		_, err := clusters.Create(t.Context(), hc, metav1.CreateOptions{})
		return err
	})
	w.machine.Resume()
	_, c = w.available(key)
	_, err := c.Resource(configMaps()).Namespace("default").Get(t.Context(), "of-the-first", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("data of the first: %v", err)
	}
	w.delete(key)
	w.wait("the end", func() error {
		if _, err := clusters.Get(t.Context(), key.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the HostedCluster: %v", err)
		}
		return nil
	})
}

// A Wake that waits for a plane ends when the HostedCluster is deleted.
func TestAWakeEndsWhenItsClusterIsDeleted(t *testing.T) {
	w := newMemoryWorld(t, "woken")
	w.machine.Pause()
	key := w.create("one", nil)
	w.wait("the first decision", func() error {
		if w.h.lookup(key) == nil {
			return errStill
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	woken := make(chan error, 1)
	go func() { woken <- w.h.Wake(ctx, key) }()
	w.wait("the Wake", func() error {
		w.h.mu.Lock()
		defer w.h.mu.Unlock()
		if c := w.h.hosted[key]; c == nil || c.demand.Waiting == 0 {
			return errStill
		}
		return nil
	})
	w.delete(key)
	w.wait("the order to discard the plane", func() error {
		if !w.machine.IsDiscarding(key) {
			return errStill
		}
		return nil
	})
	w.machine.Resume()
	if err := <-woken; !errors.Is(err, ErrNotHosted) {
		t.Errorf("got %v, want %v", err, ErrNotHosted)
	}
}
