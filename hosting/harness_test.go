package hosting

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
	"atoll.dev/hosting/memory"
	"atoll.dev/hosting/process"
	"atoll.dev/internal/quick"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
)

var errStill = errors.New("not yet")

// waitLimit is generous: a machine may have much else to do.
const waitLimit = 4 * time.Minute

// world is a hosting with a directory of its own on the shared management
// cluster, in namespaces of its own.
type world struct {
	*testing.T
	admin   dynamic.Interface
	options Options
	planes  process.Options
	prefix  string // of namespaces
	h       *Hosting
	runtime *process.Runtime
	machine *memory.Machine // instead of processes
	stop    func()
}

// newMemoryWorld is newWorld with planes in memory.
func newMemoryWorld(t *testing.T, prefix string) *world {
	t.Helper()
	prefix += "-" + strings.ToLower(rand.Text()[:6])
	w := &world{
		T: t, admin: client(t, administrator(t)), prefix: prefix, machine: memory.NewMachine(),
		options: Options{Client: client(t, accountConfig(t)), Advertise: "127.0.0.1:1"},
	}
	t.Cleanup(func() {
		w.stop()
		w.machine.Close()
		w.forget()
	})
	w.start()
	return w
}

// newWorld starts a hosting with the releases 1.36.3 and 1.36.4, which are the
// same program.
func newWorld(t *testing.T, prefix string, change ...func(*Options)) *world {
	t.Helper()
	quick.LeavesOut(t, "needs control planes")
	binary, err := planetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	later := filepath.Join(dir, "atoll-kube-later")
	if err := os.Link(binary, later); err != nil {
		if err := os.Symlink(binary, later); err != nil {
			t.Fatal(err)
		}
	}
	prefix += "-" + strings.ToLower(rand.Text()[:6]) // tests may run more than once on one management cluster
	w := &world{
		T: t, admin: client(t, administrator(t)), prefix: prefix,
		options: Options{Client: client(t, accountConfig(t)), Advertise: "127.0.0.1:1"},
		planes: process.Options{
			Dir:      filepath.Join(dir, "hosting"),
			Binaries: map[controlplane.Version]string{"1.36.3": binary, "1.36.4": later},
			Probes:   slowProbes(),
		},
	}
	for _, c := range change {
		c(&w.options)
	}
	w.reap()
	w.start()
	return w
}

// reap ends the planes of the world when the test ends, in whatever way: they
// are made to outlive their hosting. Its process has a session of its own, so that
// a signal to the test's process group does not end it before the planes.
func (w *world) reap() {
	w.Helper()
	script := exec.Command("sh", "-c",
		`cat >/dev/null; for f in "$0"/planes/*/*/lock; do kill -9 "$(cat "$f")"; done 2>/dev/null`, w.planes.Dir)
	script.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := script.StdinPipe()
	if err != nil {
		w.Fatal(err)
	}
	if err := script.Start(); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		w.stop()
		stdin.Close()
		_ = script.Wait()
		w.forget()
		for _, key := range w.runtime.List() {
			dir := w.dir(key)
			w.wait("the end of plane "+key.String(), func() error {
				if !plane.Alive(dir) {
					return nil
				}
				if pid, ok := plane.Running(dir); ok {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
				return errStill
			})
		}
	})
}

// forget removes the world's HostedClusters from the management cluster; otherwise the next test's
// hosting would run them.
func (w *world) forget() {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit) // the test's own has ended
	defer cancel()
	all := w.admin.Resource(hypershift.HostedClusters())
	list, err := all.List(ctx, metav1.ListOptions{})
	if err != nil {
		w.Error(err)
		return
	}
	for _, hc := range list.Items {
		if !strings.HasPrefix(hc.GetNamespace(), w.prefix+"-") {
			continue
		}
		_, err := all.Namespace(hc.GetNamespace()).Patch(ctx, hc.GetName(), types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err == nil {
			err = all.Namespace(hc.GetNamespace()).Delete(ctx, hc.GetName(), metav1.DeleteOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			w.Error(err)
		}
	}
}

// slowProbes never find a plane unhealthy: a machine may be busy with other
// tests.
func slowProbes() process.Probes {
	return process.Probes{Every: 10 * time.Minute, Retry: time.Second, Limit: 5 * time.Second, HangLimit: time.Hour}
}

// new makes a hosting that does not run.
func (w *world) new() *Hosting {
	w.Helper()
	o := w.options
	if w.machine != nil {
		o.Releases = Releases{"1.36.3", "1.36.4"}
		o.Planes = memory.New(w.machine, o.Releases...)
	} else {
		var err error
		if w.runtime, err = process.New(w.planes); err != nil {
			w.Fatal(err)
		}
		o.Planes, o.Releases = w.runtime, slices.Sorted(maps.Keys(w.planes.Binaries))
	}
	h, err := New(o)
	if err != nil {
		w.Fatal(err)
	}
	return h
}

// dir is the directory of a plane, whether or not it exists.
func (w *world) dir(id controlplane.ID) string { return w.runtime.Dir(id) }

// pid is the process of a plane, 0 when none runs.
func (w *world) pid(id controlplane.ID) int {
	pid, _ := plane.Running(w.dir(id))
	return pid
}

func (w *world) observe(id controlplane.ID) controlplane.Observation {
	w.Helper()
	o, err := w.runtime.Observe(id)
	if err != nil {
		w.Fatal(err)
	}
	return o
}

// start runs a hosting with the data of an earlier one.
func (w *world) start() {
	w.Helper()
	h := w.new()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	w.h, w.stop = h, sync.OnceFunc(func() { cancel(); <-done }) // before Run, which may read w.h
	go func() {
		defer close(done)
		if err := h.Run(ctx); err != nil {
			w.Errorf("hosting: %v", err)
		}
	}()
	w.wait("hosting", func() error { return h.Ready(ctx) })
}

func (w *world) wait(what string, f func() error) {
	w.Helper()
	var err error
	for limit := time.Now().Add(waitLimit); time.Now().Before(limit); {
		if err = f(); err == nil {
			return
		}
		<-time.After(5 * time.Millisecond)
	}
	w.Fatalf("waiting for %s: %v", what, err)
}

// create makes a namespace with a HostedCluster.
func (w *world) create(name string, spec map[string]any) controlplane.ID {
	w.Helper()
	key := controlplane.ID{Namespace: w.prefix + "-" + name, Name: "hc-" + name}
	makeNamespace(w.T, w.admin, key.Namespace)
	w.createAt(key, spec)
	return key
}

// createAt creates a HostedCluster in a namespace that exists.
func (w *world) createAt(key controlplane.ID, spec map[string]any) {
	w.Helper()
	if spec == nil {
		spec = map[string]any{}
	}
	if spec["release"] == nil {
		spec["release"] = map[string]any{"image": "atoll.dev/release:1.36.3"}
	}
	hc := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "hypershift.openshift.io/v1beta1", "kind": "HostedCluster", "metadata": map[string]any{
			"name": key.Name}, "spec": spec,
	}}
	if _, err := w.admin.Resource(hypershift.HostedClusters()).Namespace(key.Namespace).Create(w.Context(), hc,
		metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

func (w *world) get(key controlplane.ID) *hypershift.HostedCluster {
	w.Helper()
	object, err := w.admin.Resource(hypershift.HostedClusters()).Namespace(key.Namespace).Get(w.Context(), key.Name,
		metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	hc, err := loop.Decode[hypershift.HostedCluster](object)
	if err != nil {
		w.Fatal(err)
	}
	return hc
}

func (w *world) patch(key controlplane.ID, body string) {
	w.Helper()
	if _, err := w.admin.Resource(hypershift.HostedClusters()).Namespace(key.Namespace).Patch(w.Context(), key.Name,
		types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
}

// condition waits for a condition of the current generation;
// reason "" is any.
func (w *world) condition(key controlplane.ID, kind, status, reason string) *hypershift.HostedCluster {
	w.Helper()
	var hc *hypershift.HostedCluster
	w.wait(fmt.Sprintf("%s=%s %s of %s", kind, status, reason, key), func() error {
		hc = w.get(key)
		c := meta.FindStatusCondition(hc.Status.Conditions, kind)
		if c == nil || string(c.Status) != status || c.ObservedGeneration != hc.Generation || reason != "" &&
			c.Reason != reason {
			all, _ := json.MarshalIndent(hc.Status.Conditions, "", " ")
			return fmt.Errorf("generation %d, conditions %s", hc.Generation, all)
		}
		return nil
	})
	return hc
}

// available waits until a plane serves, and returns a client of it.
func (w *world) available(key controlplane.ID) (*hypershift.HostedCluster, dynamic.Interface) {
	w.Helper()
	hc := w.condition(key, hypershift.Available, "True", reasonAsExpected)
	admin, err := w.h.Client(key)
	if err != nil {
		w.Fatalf("%s is available, and hosting has no plane", key)
	}
	rc, err := admin.RESTConfig()
	if err != nil {
		w.Fatal(err)
	}
	return hc, client(w.T, rc)
}

func (w *world) delete(key controlplane.ID) {
	w.Helper()
	err := w.admin.Resource(hypershift.HostedClusters()).Namespace(key.Namespace).Delete(w.Context(), key.Name,
		metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
}

// gone waits until nothing of a hosted cluster remains: no object, process, file, port or content
// of the namespace.
func (w *world) gone(key controlplane.ID, pids ...int) {
	w.Helper()
	w.wait("the end of "+key.String(), func() error {
		_, err := w.admin.Resource(hypershift.HostedClusters()).Namespace(key.Namespace).Get(w.Context(), key.Name,
			metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the HostedCluster: %v", err)
		}
		list, err := w.admin.Resource(secrets()).Namespace(key.Namespace).List(w.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) > 0 {
			return fmt.Errorf("%d secrets, %v", len(list.Items), err)
		}
		return nil
	})
	if left, _ := filepath.Glob(filepath.Join(w.planes.Dir, "planes", key.Namespace, "*")); len(left) > 0 {
		w.Errorf("files are left of %s: %v", key, left)
	}
	for _, pid := range pids {
		if w.runs(pid, key) {
			w.Errorf("process %d of %s runs", pid, key)
		}
	}
}

// runs reports whether a process is a plane of this cluster.
func (w *world) runs(pid int, key controlplane.ID) bool {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.Contains(string(cmdline), w.dir(key))
}

// kubeconfig reads the Secret that a status names.
func (w *world) kubeconfig(hc *hypershift.HostedCluster) (cluster struct{ Server, TLSServerName string }) {
	w.Helper()
	s, err := w.admin.Resource(secrets()).Namespace(hc.Namespace).Get(w.Context(), hc.Status.KubeConfig.Name,
		metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	cfg, err := clientcmd.Load(secretValue(s, "kubeconfig"))
	if err != nil {
		w.Fatal(err)
	}
	for _, c := range cfg.Clusters {
		cluster.Server, cluster.TLSServerName = c.Server, c.TLSServerName
	}
	return cluster
}

// keep writes a ConfigMap into a plane; kept reports whether it exists.
func (w *world) keep(c dynamic.Interface, name string) {
	w.Helper()
	cm := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": name}}}
	if _, err := c.Resource(configMaps()).Namespace("default").Create(w.Context(), cm,
		metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

func (w *world) hasConfigMap(c dynamic.Interface, name string) {
	w.Helper()
	if _, err := c.Resource(configMaps()).Namespace("default").Get(w.Context(), name, metav1.GetOptions{}); err != nil {
		w.Errorf("a customer's data is lost: %v", err)
	}
}
