package hosting

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"atoll.dev/api/hypershift"
	"atoll.dev/backup"
	"atoll.dev/envelope"
	"atoll.dev/hosting/backups"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/drill"
	"atoll.dev/plane"
)

// restoreWorld is a world whose planes have backups, in a store in memory.
type restoreWorld struct {
	*world
	store   backup.Store
	keys    envelope.KMS
	backups *backups.Backups
	halt    func() // hosting and its backups, as a kill ends them: planes run on

	drillEvery time.Duration        // 0: there are no drills
	metrics    *prometheus.Registry // of the drills
}

func newRestoreWorld(t *testing.T) *restoreWorld {
	memory := s3mem.New()
	if err := memory.CreateBucket("backups"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(memory).Server())
	t.Cleanup(server.Close)
	r := &restoreWorld{}
	var err error
	if r.store, err = backup.NewS3(backup.S3Options{Bucket: "backups", Endpoint: server.URL,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "A", SecretAccessKey: "S"}, nil
		})}); err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keyFile, []byte("k1 "+strings.Repeat("QUFB", 10)+"QUE=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r.keys, err = envelope.ReadKeyFile(keyFile); err != nil {
		t.Fatal(err)
	}
	r.world = newWorld(t, "restore")
	r.stop()
	r.run()
	t.Cleanup(func() { r.halt() })
	return r
}

// records are those of the store, as another management cluster of the region reads them.
func (r *restoreWorld) records() *backup.Records { return backup.NewRecords(r.store, r.keys) }

// run starts hosting with backups, with the data of an earlier one.
func (r *restoreWorld) run() {
	r.Helper()
	r.backups = backups.New(backups.Options{
		Store: r.store, KMS: r.keys, Spool: filepath.Join(r.planes.Dir, "spool"), Programs: r.planes.Binaries,
		Dir: func(id controlplane.ID) string { return r.runtime.Dir(id) },
		Record: func(id controlplane.ID) (controlplane.LastStart, error) {
			o, err := r.runtime.Observe(id)
			return o.LastStart, err
		},
		Endpoint: r.options.Advertise,
		State:    func(id controlplane.ID) string { return r.runtime.StateDir(id) },
		Staging:  func(id controlplane.ID, order string) string { return r.runtime.Staging(id, order) },
		Restores: func(id controlplane.ID) ([]string, error) {
			o, err := r.runtime.Observe(id)
			return o.LastStart.Restores(), err
		},
		Dial: func(id controlplane.ID, w backup.Wrap) (*grpc.ClientConn, error) {
			return plane.Config{Dir: r.runtime.Dir(id)}.DialStore(w)
		},
	})
	r.options.Backups = r.backups
	r.metrics = prometheus.NewRegistry()
	drills := &lateDrills{}
	r.options.Drills = drills
	r.start()
	practice := drill.New(drill.Options{Planes: r.runtime, Backups: r.backups, Renew: r.backups.Renew, Every: r.drillEvery,
		Log: r.options.Log, File: filepath.Join(r.planes.Dir, "drills.json"), Metrics: r.metrics})
	drills.Store(practice)
	stopHosting, h, made := r.stop, r.h, r.backups
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- made.Run(ctx, h.BackupChanged) }()
	go func() { done <- practice.Run(ctx, h.DrillChanged) }()
	r.halt = sync.OnceFunc(func() {
		cancel()
		stopHosting()
		if err := errors.Join(<-done, <-done); err != nil {
			r.Error(err)
		}
	})
	r.stop = r.halt
}

// order orders a restore of an existing cluster.
func (r *restoreWorld) order(key controlplane.ID, o hypershift.RestoreOrder) {
	r.Helper()
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		hypershift.RestoreAnnotation: marshal(r.T, o)}}})
	if err != nil {
		r.Fatal(err)
	}
	r.patch(key, string(body))
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// await waits until a restore has one of the phases.
func (r *restoreWorld) await(key controlplane.ID, id string,
	phases ...hypershift.RestorePhase) hypershift.RestoreStatus {
	r.Helper()
	var s hypershift.RestoreStatus
	r.wait(fmt.Sprintf("restore %s to be %v", id, phases), func() error {
		hc := r.get(key)
		if hc.Status.Restore == nil || hc.Status.Restore.ID != id {
			return errStill
		}
		s = *hc.Status.Restore
		for _, p := range phases {
			if s.Phase == p {
				return nil
			}
		}
		if s.Phase.IsFinal() {
			r.Fatalf("restore %s: %s: %s", id, s.Phase, s.Message)
		}
		return fmt.Errorf("%s: %s", s.Phase, s.Message)
	})
	return s
}

// A customer's cluster goes back to a second, in place, while hosting is killed on the way; then another cluster begins
// with the data of that second.
func TestAClusterIsRestoredInPlaceAndCloned(t *testing.T) {
	r := newRestoreWorld(t)
	key := r.create("one", nil)
	hc, c := r.available(key)
	authority := readFile(t, filepath.Join(r.dir(key), "pki", "ca.crt"))
	r.keep(c, "before")
	r.keep(c, "removed")
	r.setData(c, "before", "good")
	r.keepSecret(c)
	at := time.Now().Add(time.Second).Truncate(time.Second) // the journal ends here
	r.wait("a sample of the log after "+at.String(), func() error {
		if s, _ := r.backups.State(key); !s.Stored.After(at.Add(time.Second)) {
			return errStill
		}
		return nil
	})
	r.keep(c, "after")
	r.setData(c, "before", "bad")
	configs := c.Resource(configMaps()).Namespace("default")
	if err := configs.Delete(t.Context(), "removed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	last, err := configs.Get(t.Context(), "before", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text := at.UTC().Format(time.RFC3339)

	r.order(key, hypershift.RestoreOrder{ID: "dry", At: text, DryRun: true})
	s := r.await(key, "dry", hypershift.RestoreCompleted)
	var changes controlplane.Changes
	if err := json.Unmarshal(s.Changes, &changes); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(changes.Kinds, func(k controlplane.KindChanges) bool { return k.Kind == "configmaps" })
	if i < 0 || changes.Kinds[i].Created != 1 || changes.Kinds[i].Updated < 1 || changes.Kinds[i].Deleted < 1 {
		t.Fatalf("the changes of the dry run: %s", s.Changes)
	}
	for _, name := range []string{"default/after", "default/before", "default/removed"} {
		if !slices.Contains(changes.Kinds[i].Names, name) {
			t.Errorf("the changes of the dry run lack %s: %s", name, s.Changes)
		}
	}
	if _, err := configs.Get(t.Context(), "after", metav1.GetOptions{}); err != nil {
		t.Errorf("the dry run changed something: %v", err)
	}

	pid := r.pid(key)
	r.order(key, hypershift.RestoreOrder{ID: "first", At: text})
	r.await(key, "first", hypershift.RestorePreparing, hypershift.RestoreReplacing)
	r.halt()
	r.run()
	r.await(key, "first", hypershift.RestoreReplacing, hypershift.RestoreCompleted)
	r.halt()
	r.run()
	if s := r.await(key, "first", hypershift.RestoreCompleted); s.Message != "" || len(s.Changes) > 0 || s.DryRun {
		t.Errorf("the status has members of the dry run before: %+v", s)
	}
	if r.pid(key) == pid {
		t.Error("the same process has other data")
	}
	hc, c = r.available(key)
	r.isAsOfThen(c)
	if !bytes.Equal(readFile(t, filepath.Join(r.dir(key), "pki", "ca.crt")), authority) {
		t.Error("the plane has another authority")
	}
	configs = c.Resource(configMaps()).Namespace("default")
	if _, err := configs.Watch(t.Context(), metav1.ListOptions{ResourceVersion: last.GetResourceVersion()}); err == nil {
		w, _ := configs.Watch(t.Context(), metav1.ListOptions{ResourceVersion: last.GetResourceVersion()})
		e := <-w.ResultChan()
		w.Stop()
		if status, ok := e.Object.(*metav1.Status); !ok || status.Code != 410 {
			t.Errorf("a watch from before the restore gets %v", e)
		}
	} else if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch from before the restore: %v", err)
	}
	r.keep(c, "later")
	later, err := configs.Get(t.Context(), "later", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if revision(t, later) <= revision(t, last) {
		t.Errorf("the resource version went back from %s to %s", last.GetResourceVersion(), later.GetResourceVersion())
	}
	if left, _ := filepath.Glob(filepath.Join(r.runtime.StateDir(key), "restored-*")); len(left) > 0 {
		r.wait("the removal of what the restore left", func() error {
			if left, _ := filepath.Glob(filepath.Join(r.runtime.StateDir(key), "restored-*")); len(left) > 0 {
				return fmt.Errorf("%v", left)
			}
			return nil
		})
	}

	// An order that was executed does nothing, and one outside the backups fails and changes nothing.
	pid = r.pid(key)
	r.order(key, hypershift.RestoreOrder{ID: "early", At: "2020-01-01T00:00:00Z"})
	if s := r.await(key, "early", hypershift.RestoreFailed); !strings.Contains(s.Message, "the oldest backup is of") {
		t.Errorf("before the first backup: %+v", s)
	}
	r.order(key, hypershift.RestoreOrder{ID: "first", At: text})
	if s := r.await(key, "first", hypershift.RestoreFailed, hypershift.RestoreCompleted); r.pid(key) != pid {
		t.Errorf("an executed order runs again: %+v", s)
	}
	r.hasConfigMap(c, "later")

	clone := r.clone("two", hypershift.RestoreOrder{ID: "clone", At: text,
		Source: &hypershift.RestoreSource{Namespace: key.Namespace, Name: key.Name}})
	r.await(clone, "clone", hypershift.RestoreCompleted)
	_, c = r.available(clone)
	r.isAsOfThen(c)
	if bytes.Equal(readFile(t, filepath.Join(r.dir(clone), "pki", "ca.crt")), authority) {
		t.Error("the clone has the authority of the other cluster")
	}
	failed := r.clone("three", hypershift.RestoreOrder{ID: "clone", At: "2020-01-01T00:00:00Z",
		Source: &hypershift.RestoreSource{Namespace: key.Namespace, Name: key.Name}})
	r.await(failed, "clone", hypershift.RestoreFailed)
	r.condition(failed, hypershift.Available, "False", "RestoreFailed")
	if r.pid(failed) != 0 {
		t.Error("a clone without data runs")
	}
	if hc.Status.Backups == nil || len(hc.Status.Backups.Chains) == 0 {
		t.Errorf("the status has no backups: %+v", hc.Status.Backups)
	}
}

// clone creates a cluster that begins with the data of another one.
func (r *restoreWorld) clone(name string, o hypershift.RestoreOrder) controlplane.ID {
	r.Helper()
	key := controlplane.ID{Namespace: r.prefix + "-" + name, Name: "hc-" + name}
	makeNamespace(r.T, r.admin, key.Namespace)
	r.createOrdered(key, o)
	return key
}

// createOrdered creates a HostedCluster that has the order of a restore from the beginning.
func (r *restoreWorld) createOrdered(key controlplane.ID, o hypershift.RestoreOrder) {
	r.Helper()
	_, err := r.admin.Resource(hypershift.HostedClusters()).Namespace(key.Namespace).Create(r.Context(),
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "hypershift.openshift.io/v1beta1", "kind": "HostedCluster",
			"metadata": map[string]any{"name": key.Name,
				"annotations": map[string]any{hypershift.RestoreAnnotation: marshal(r.T, o)}},
			"spec": map[string]any{"release": map[string]any{"image": "atoll.dev/release:1.36.3"}},
		}}, metav1.CreateOptions{})
	if err != nil {
		r.Fatal(err)
	}
}

// keepSecret creates a Secret, which the plane encrypts with a key of its own.
func (r *restoreWorld) keepSecret(c dynamic.Interface) {
	r.Helper()
	if _, err := c.Resource(secrets()).Namespace("default").Create(r.Context(), &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "secret"},
			"stringData": map[string]any{"is": "readable"}}}, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
}

// isAsOfThen checks that a plane has the objects of the moment to which it was restored.
func (r *restoreWorld) isAsOfThen(c dynamic.Interface) {
	r.Helper()
	configs := c.Resource(configMaps()).Namespace("default")
	r.hasConfigMap(c, "removed")
	before, err := configs.Get(r.Context(), "before", metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	if value, _, _ := unstructured.NestedString(before.Object, "data", "is"); value != "good" {
		r.Errorf("the object is %q, want good", value)
	}
	if _, err := c.Resource(secrets()).Namespace("default").Get(r.Context(), "secret", metav1.GetOptions{}); err != nil {
		r.Errorf("the Secret cannot be read: %v", err)
	}
	if _, err := configs.Get(r.Context(), "after", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		r.Errorf("an object that was created later: %v", err)
	}
}

func (r *restoreWorld) setData(c dynamic.Interface, name, value string) {
	r.Helper()
	_, err := c.Resource(configMaps()).Namespace("default").Patch(r.Context(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"data":{"is":%q}}`, value), metav1.PatchOptions{})
	if err != nil {
		r.Fatal(err)
	}
}

func revision(t *testing.T, o *unstructured.Unstructured) int64 {
	t.Helper()
	n, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	if err != nil {
		t.Fatal(errors.Join(err, errors.New(o.GetName())))
	}
	return n
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
