package hosting

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
	"atoll.dev/hosting/process"
	"atoll.dev/internal/quick"
	"atoll.dev/plane"
)

// Conditions report the faults of the machine, and that they are over.
func TestFaultsOfTheMachineAreReportedAndRepaired(t *testing.T) {
	quick.Slow(t, "starts planes on a machine with several faults")
	w := newWorld(t, "faults")
	missing := filepath.Join(t.TempDir(), "atoll-kube")
	w.stop()
	w.planes.Binaries["1.36.5"] = missing
	w.start()

	t.Log("a full disk, and then no program")
	key := controlplane.ID{Namespace: w.prefix + "-one", Name: "hc-one"}
	dir, state := w.dir(key), w.runtime.StateDir(key)
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	full := filepath.Join(state, "hosting.json") + ".tmp"
	if err := os.Symlink("/dev/full", full); err != nil {
		t.Fatal(err)
	}
	w.create("one", map[string]any{"release": map[string]any{"image": "atoll.dev/release:1.36.5"}})
	w.condition(key, hypershift.Available, "False", string(controlplane.BinaryMissing))
	program := w.planes.Binaries["1.36.3"]
	if err := os.Symlink(program, missing); err != nil {
		t.Fatal(err)
	}
	w.condition(key, hypershift.InfrastructureReady, "False", string(controlplane.DiskFull))
	w.condition(key, hypershift.Degraded, "True", string(controlplane.DiskFull))
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	_, c := w.available(key)
	w.condition(key, hypershift.Degraded, "False", reasonAsExpected)
	w.keep(c, "customer")

	t.Log("an upgrade to a program that is missing leaves the plane as it is")
	pid := w.pid(key)
	w.stop()
	w.planes.Binaries["1.36.6"] = missing + "-later"
	w.start()
	w.patch(key, `{"spec":{"release":{"image":"atoll.dev/release:1.36.6"}}}`)
	w.condition(key, hypershift.Degraded, "True", string(controlplane.BinaryMissing))
	w.condition(key, hypershift.Available, "True", reasonAsExpected)
	if now := w.pid(key); now != pid {
		t.Errorf("process %d became %d", pid, now)
	}
	w.patch(key, `{"spec":{"release":{"image":"atoll.dev/release:1.36.5"}}}`)
	w.condition(key, hypershift.Degraded, "False", reasonAsExpected)

	t.Log("a plane that hangs is not available, and is restarted")
	w.stop()
	patient := w.planes.Probes
	w.planes.Probes = process.Probes{
		Every:     100 * time.Millisecond,
		Retry:     100 * time.Millisecond,
		Limit:     2 * time.Second,
		HangLimit: 10 * time.Second, // while the test looks at the conditions, and longer than a pause of the machine
	}
	w.start()
	w.wait("the adoption", func() error {
		if w.observe(key).State != controlplane.Ready {
			return errStill
		}
		return nil
	})
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	w.condition(key, hypershift.Available, "False", "NotReady")
	w.condition(key, hypershift.EtcdAvailable, "False", "NotReady")
	w.wait("another process", func() error {
		if now := w.pid(key); now == pid || now == 0 || w.observe(key).State != controlplane.Ready {
			return errStill
		}
		return nil
	})
	w.condition(key, hypershift.Available, "True", reasonAsExpected)

	t.Log("its port is another's when it comes back")
	port := w.observe(key).Backend
	w.stop()
	w.planes.Probes = patient
	pid, _ = plane.Running(dir)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.wait("the port", func() error {
		l, err := net.Listen("tcp", port)
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	counts := prometheus.NewRegistry()
	w.planes.Metrics = counts
	w.start()
	w.wait("the plane", func() error {
		if w.observe(key).State != controlplane.Ready {
			return errStill
		}
		return nil
	})
	if now := w.observe(key).Backend; now == port {
		t.Errorf("it still listens at %s", now)
	}
	if n := failuresOf(t, counts, controlplane.PortTaken); n < 1 {
		t.Errorf("the taken port was counted %v times", n)
	}
	_, c = w.available(key)
	w.hasConfigMap(c, "customer")
	w.delete(key)
	w.gone(key)
}

func TestExternalSecretsOfOurStoreAreProvided(t *testing.T) {
	w := newWorld(t, "secrets")
	makeNamespace(t, w.admin, w.prefix+"-one")
	make := func(name, store, key string) {
		es := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "external-secrets.io/v1", "kind": "ExternalSecret", "metadata": map[string]any{"name": name},
			"spec": map[string]any{
				"secretStoreRef": map[string]any{"kind": "ClusterSecretStore", "name": store}, "target": map[string]any{
					"creationPolicy": "Orphan"},
				"data": []any{map[string]any{"secretKey": dockerConfigKey, "remoteRef": map[string]any{"key": key}}},
			},
		}}
		if _, err := w.admin.Resource(externalSecrets()).Namespace(w.prefix+"-one").Create(t.Context(), es,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ready := func(name string) (status, reason string) {
		w.wait("ExternalSecret "+name, func() error {
			object, err := w.admin.Resource(externalSecrets()).Namespace(w.prefix+"-one").Get(t.Context(), name,
				metav1.GetOptions{})
			if err != nil {
				return err
			}
			es, err := loop.Decode[externalSecret](object)
			if err != nil || len(es.Status.Conditions) == 0 {
				return fmt.Errorf("no condition, %v", err)
			}
			status, reason = string(es.Status.Conditions[0].Status), es.Status.Conditions[0].Reason
			return nil
		})
		return status, reason
	}
	make("foreign", "aws-parameter-store", "pull-secret")
	make("pull-secret", "atoll", "pull-secret")
	make("token", "atoll", account+"-token")
	if status, _ := ready("pull-secret"); status != "True" {
		t.Errorf("pull-secret is %s", status)
	}
	s, err := w.admin.Resource(secrets()).Namespace(w.prefix+"-one").Get(t.Context(), "pull-secret", metav1.GetOptions{})
	if err != nil || len(secretValue(s, dockerConfigKey)) == 0 || s.Object["type"] != dockerConfigType {
		t.Errorf("the secret is %v, %v", s, err)
	}
	if status, reason := ready("token"); status != "False" || reason != "SecretSyncedError" {
		t.Errorf("hosting's own token: %s %s", status, reason)
	}
	object, err := w.admin.Resource(externalSecrets()).Namespace(w.prefix+"-one").Get(t.Context(), "foreign",
		metav1.GetOptions{})
	if err != nil || object.Object["status"] != nil {
		t.Errorf("the ExternalSecret of another store was touched: %v, %v", object, err)
	}
}

// A watch may be stale: a HostedCluster that it shows may be deleted already. No HostedCluster
// would own a plane that starts then.
func TestI9NoPlaneStartsForADeletedHostedCluster(t *testing.T) {
	w := newWorld(t, "behind")
	key := controlplane.ID{Namespace: w.prefix + "-one", Name: "hc-one"}
	makeNamespace(w.T, w.admin, key.Namespace)
	stale := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "hypershift.openshift.io/v1beta1", "kind": "HostedCluster",
		"metadata": map[string]any{"name": key.Name, "namespace": key.Namespace, "resourceVersion": "1",
			"uid": "00000000-0000-0000-0000-000000000001"},
		"spec": map[string]any{"release": map[string]any{"image": "atoll.dev/release:1.36.3"}},
	}}
	if _, err := w.h.reconcile(t.Context(), loop.Key(key), stale); err != nil {
		t.Error(err)
	}
	if w.h.lookup(key) != nil || plane.Alive(w.dir(key)) {
		t.Error("a plane was begun")
	}
}

// failuresOf is how many failures with a reason a runtime has counted.
func failuresOf(t *testing.T, r *prometheus.Registry, reason controlplane.FailureReason) (n float64) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "atoll_hosting_plane_failures_total" && m.GetLabel()[0].GetValue() == string(reason) {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}
