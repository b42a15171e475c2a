package hosting

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/process"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
)

// childVariable makes the test program a hosting; its value is a childOptions.
const childVariable = "HOSTING_TEST_CHILD"

type childOptions struct {
	Kubeconfig, Dir string
	Binaries        map[controlplane.Version]string
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(planetest.Main(m))
}

func child(text string) error {
	var o childOptions
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return err
	}
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	planes, err := process.New(process.Options{Dir: o.Dir, Binaries: o.Binaries})
	if err != nil {
		return err
	}
	h, err := New(Options{
		Client: c, Planes: planes, Releases: slices.Collect(maps.Keys(o.Binaries)), Advertise: "127.0.0.1:1",
	})
	if err != nil {
		return err
	}
	return h.Run(context.Background())
}

// spawn runs hosting as a process of its own.
func (w *world) spawn(kubeconfig string) *exec.Cmd {
	w.Helper()
	o, err := json.Marshal(childOptions{kubeconfig, w.planes.Dir, w.planes.Binaries})
	if err != nil {
		w.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+string(o))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// processes lists the processes with the directory of a plane in their command line, whether or not they
// have locked it.
func (w *world) processes() map[int]string {
	found := map[int]string{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		cmdline, err := os.ReadFile(dir + "/cmdline")
		if err != nil || !strings.Contains(string(cmdline), filepath.Join(w.planes.Dir, "planes")) {
			continue
		}
		var pid int
		fmt.Sscanf(filepath.Base(dir), "%d", &pid)
		found[pid] = strings.ReplaceAll(string(cmdline), "\x00", " ")
	}
	return found
}

// number waits until so many planes have one process each: a process that lost the
// race for the plane's directory takes a moment to end.
func (w *world) number(planes int) {
	w.Helper()
	w.wait("a process for each plane", func() error {
		if ps := w.processes(); len(ps) != planes {
			return fmt.Errorf("%d planes are %d processes: %v", planes, len(ps), ps)
		}
		return nil
	})
}

// Hosting and planes are killed at random instants while clusters are made and
// deleted. Acknowledged data stays, no plane runs twice, and nothing is left of a
// deleted cluster.
func TestI9I12HostingConvergesAfterKills(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t, "kill")
	w.stop()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	data, err := Bootstrap(t.Context(), administrator(t), BootstrapOptions{})
	if err == nil {
		err = os.WriteFile(kubeconfig, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	hosting := w.spawn(kubeconfig)
	again := func(most time.Duration) {
		<-time.After(time.Duration(random.Int64N(int64(most))))
		_ = hosting.Process.Kill()
		_ = hosting.Wait()
		hosting = w.spawn(kubeconfig)
	}
	stays, goes := w.create("stays", nil), w.create("goes", nil)
	for range 4 { // at any instant of the creation
		again(400 * time.Millisecond)
	}
	w.condition(stays, hypershift.Available, "True", reasonAsExpected)
	w.condition(goes, hypershift.Available, "True", reasonAsExpected)
	w.number(2)
	customer := w.inside(stays)
	w.keep(customer, "acknowledged")
	pid, _ := plane.Running(w.dir(stays))
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.delete(goes)
	for range 4 { // at any instant of the deletion, and of the other's restart
		again(60 * time.Millisecond)
	}
	w.wait("the end of "+goes.String(), func() error {
		_, err := w.admin.Resource(hypershift.HostedClusters()).Namespace(goes.Namespace).Get(t.Context(), goes.Name,
			metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the HostedCluster: %v", err)
		}
		return nil
	})
	w.wait("the other's return", func() error {
		if now, ok := plane.Running(w.dir(stays)); !ok || now == pid {
			return errStill
		}
		return nil
	})
	w.condition(stays, hypershift.Available, "True", reasonAsExpected)
	w.hasConfigMap(w.inside(stays), "acknowledged")
	w.number(1)
	if left, _ := filepath.Glob(filepath.Join(w.planes.Dir, "planes", goes.Namespace)); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
	if err := w.new().Run(t.Context()); !errors.Is(err, process.ErrLocked) {
		t.Errorf("a second hosting in the same directory: %v", err)
	}
}

// inside is a customer's way into a plane, with the kubeconfig of the Secret
// but past the router.
func (w *world) inside(key controlplane.ID) dynamic.Interface {
	w.Helper()
	s, err := w.admin.Resource(secrets()).Namespace(key.Namespace).Get(w.Context(), kubeconfigSecret(key),
		metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(secretValue(s, "kubeconfig"))
	if err != nil {
		w.Fatal(err)
	}
	config = rest.CopyConfig(config)
	config.Host = "https://" + w.recordedBackend(key)
	return client(w.T, config)
}

// recordedBackend returns the address of a plane whose runtime is in another process.
func (w *world) recordedBackend(id controlplane.ID) string {
	w.Helper()
	runtime, err := process.New(w.planes)
	if err != nil {
		w.Fatal(err)
	}
	o, err := runtime.Observe(id)
	if err != nil {
		w.Fatal(err)
	}
	return o.Backend
}
