package process_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"atoll.dev/hosting"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/process"
	"atoll.dev/hosting/runtimetest"
	"atoll.dev/internal/quick"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
)

var _ hosting.Planes = (*process.Runtime)(nil)

// suiteOptions returns the options of a runtime in a new directory, for the suite: its releases are one program under
// two names.
func suiteOptions(t *testing.T) process.Options {
	binary, err := planetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	o := process.Options{Dir: filepath.Join(dir, "planes"), Binaries: map[controlplane.Version]string{}}
	for _, v := range runtimetest.Releases {
		o.Binaries[v] = filepath.Join(dir, "atoll-kube-"+string(v))
		if err := os.Symlink(binary, o.Binaries[v]); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func TestTheRuntimePassesTheSuite(t *testing.T) {
	quick.LeavesOut(t, "needs control planes")
	o := suiteOptions(t)
	t.Cleanup(func() { killAll(t, o) })
	runtimetest.Run(t, func(t *testing.T) hosting.Planes {
		r, err := process.New(o)
		if err != nil {
			t.Fatal(err)
		}
		return r
	})
}

// killAll ends the planes that a failed run has left.
func killAll(t *testing.T, o process.Options) {
	o.Metrics = nil
	r, err := process.New(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range r.List() {
		if pid, ok := plane.Running(r.Dir(id)); ok {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// A full etcd shows in the observation of a plane that goes on to serve, and no longer when there is room again.
func TestAFullStoreShowsInTheObservation(t *testing.T) {
	quick.LeavesOut(t, "needs a control plane")
	binary, err := planetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	const quota = 8 << 20
	o := process.Options{
		Dir: t.TempDir(), Binaries: map[controlplane.Version]string{"1.36.3": binary}, EtcdQuota: quota,
	}
	r, err := process.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	changes := make(chan struct{}, 1)
	closeRuntime, err := r.Open(ctx, func(controlplane.ID) {
		select {
		case changes <- struct{}{}:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); closeRuntime(); killAll(t, o) })
	id := controlplane.ID{Namespace: "clusters-full", Name: "hc-full"}
	await := func(what string, is func(controlplane.Observation) bool) {
		t.Helper()
		limit := time.After(3 * time.Minute)
		for {
			seen, err := r.Observe(id)
			if err != nil {
				t.Fatal(err)
			}
			if is(seen) {
				return
			}
			select {
			case <-changes:
			case <-limit:
				t.Fatalf("waited too long for %s: %+v", what, seen)
			}
		}
	}
	if err := r.Ensure(id, controlplane.Spec{Name: "full", Release: "1.36.3"}); err != nil {
		t.Fatal(err)
	}
	await("a plane", func(o controlplane.Observation) bool { return o.State == controlplane.Ready })

	admin, err := r.Client(id)
	if err != nil {
		t.Fatal(err)
	}
	config, err := admin.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	things := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("default")
	fill := func() (n int) {
		for ; ; n++ {
			_, err := things.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"generateName": "big-"},
				"data": map[string]any{"x": strings.Repeat("x", 60_000)},
			}}, metav1.CreateOptions{})
			if err != nil {
				return n
			}
		}
	}
	filled := make(chan struct{})
	stop, stopFilling := context.WithCancel(ctx)
	go func() { // the plane finds room a few times before it is full for good
		defer close(filled)
		for stop.Err() == nil {
			fill()
			select {
			case <-stop.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	await("a full store", func(o controlplane.Observation) bool {
		return o.State == controlplane.Ready && o.Store.Full && o.Store.Quota == quota
	})
	stopFilling()
	<-filled
	if err := things.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatalf("a full plane refuses a deletion: %v", err)
	}
	await("room", func(o controlplane.Observation) bool {
		return o.State == controlplane.Ready && o.Store == controlplane.StoreState{}
	})
	if n := fill(); n == 0 {
		t.Error("the plane still refuses writes")
	}
}
