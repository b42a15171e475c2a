package lifecycle

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/adapter/works"
	apihosting "atoll.dev/api/hosting"
	"atoll.dev/api/hypershift"
	"atoll.dev/api/work"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
	"atoll.dev/clm"
	"atoll.dev/hosting"
	"atoll.dev/internal/pgtest"
)

// road is a region with the adapters of hosted clusters, and one management cluster whose hosting
// is the test itself: the test reports the state of a plane.
type road struct {
	*world
	dial                  func(source string) *maestroclient.Client
	stopAgent, startAgent func()
	operator              *maestroclient.Client
}

func newRoad(t *testing.T) *road {
	t.Helper()
	shipping := pgtest.DSN(t)
	region, err := Start(t.Context(), Options{DSN: pgtest.DSN(t), Entities: string(clm.DefaultEntities), Fleet: true,
		Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	w := &road{world: &world{T: t, Region: region}}
	t.Cleanup(func() {
		if err := region.Close(); err != nil {
			t.Error(err)
		}
	})
	w.dial = w.startMaestro(shipping)
	cluster := w.cluster()
	if _, err := hosting.Bootstrap(t.Context(), cluster, hosting.BootstrapOptions{}); err != nil {
		t.Fatal(err)
	}
	w.operator = w.dial("operator")
	w.await("the consumer", func() error {
		_, err := w.operator.CreateConsumer(t.Context(), consumer, nil)
		if remote.StatusOf(err) == 409 {
			return nil
		}
		return err
	})
	w.stopAgent, w.startAgent = w.agent(cluster)
	for _, name := range []string{"placement", "pull-secret", "hosted-cluster", "node-pool", "credential"} {
		a := Adapter{Env: map[string]string{"ATOLL_BASE_DOMAIN": "hosted.test"}}
		if name != "placement" {
			a.Transport = works.New(works.Options{Client: w.dial(name), Log: w.log})
		}
		w.adapter(name, a)
	}
	return w
}

// join makes the management cluster known to the lifecycle manager.
func (w *road) join(planes int) {
	w.Helper()
	w.call("POST", "/managementclusters", map[string]any{"kind": "ManagementCluster", "name": consumer,
		"spec": map[string]any{
			"capacity": map[string]any{"planes": planes}, "versions": []string{"1.36.3"}}})
}

func (w *road) create(name string) (cluster Resource, path string) {
	w.Helper()
	cluster = w.call("POST", "/clusters", map[string]any{"kind": "Cluster", "name": name, "spec": map[string]any{
		"hostedCluster": map[string]any{"release": map[string]any{"image": "atoll.dev/release:1.36.3"}}}})
	return cluster, "/clusters/" + cluster.ID
}

// hosted returns the existing object of a kind for a cluster.
func (w *road) hosted(kind schema.GroupVersionResource, cluster, name string,
	o **unstructured.Unstructured) func() error {
	return func() (err error) {
		*o, err = w.object(kind, apihosting.Namespace(cluster), name)
		return err
	}
}

// says writes hosting's status of an object.
func (w *road) report(kind schema.GroupVersionResource, o *unstructured.Unstructured, generation int64,
	status map[string]any, conditions ...string) {
	w.Helper()
	var list []any
	for i := 0; i+3 < len(conditions); i += 4 {
		list = append(list, map[string]any{"type": conditions[i], "status": conditions[i+1], "reason": conditions[i+2],
			"message":            conditions[i+3],
			"observedGeneration": generation, "lastTransitionTime": "2026-01-02T03:04:05Z"})
	}
	if status == nil {
		status = map[string]any{}
	}
	status["conditions"] = list
	w.await("hosting reports on "+o.GetName(), func() error {
		now, err := w.admin.Resource(kind).Namespace(o.GetNamespace()).Get(w.Context(), o.GetName(),
			metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Object["status"] = status
		_, err = w.admin.Resource(kind).Namespace(o.GetNamespace()).UpdateStatus(w.Context(), now,
			metav1.UpdateOptions{})
		return err
	})
}

// condition waits until the mirrored condition of an adapter has the value.
func (w *road) condition(path, kind, status, reason string) func() error {
	return func() error {
		var r Resource
		if err := w.Call(w.Context(), "GET", path, nil, &r); err != nil {
			return err
		}
		for _, c := range r.Status.Conditions {
			if c.Type == kind && c.Status == status && (reason == "" || c.Reason == reason) {
				return nil
			}
		}
		return fmt.Errorf("%+v", r.Status.Conditions)
	}
}

func externalSecrets() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "external-secrets.io", Version: "v1", Resource: "externalsecrets"}
}

// edit changes an object as hosting does, which sets finalizers.
func (w *road) edit(kind schema.GroupVersionResource, o *unstructured.Unstructured, patch string) {
	w.Helper()
	_, err := w.admin.Resource(kind).Namespace(o.GetNamespace()).Patch(w.Context(), o.GetName(), types.MergePatchType,
		[]byte(patch), metav1.PatchOptions{FieldManager: "hosting"})
	if err != nil {
		w.Fatal(err)
	}
}

// markDeleted waits until an object is to be deleted.
func (w *road) markDeleted(kind schema.GroupVersionResource, o *unstructured.Unstructured) func() error {
	return func() error {
		now, err := w.object(kind, o.GetNamespace(), o.GetName())
		if err == nil && now.GetDeletionTimestamp() == nil {
			err = errors.New("nobody has asked for its deletion")
		}
		return err
	}
}

func (w *road) delete(path string) {
	w.Helper()
	if err := w.Call(w.Context(), "DELETE", path, nil, nil); err != nil {
		w.Fatal(err)
	}
}

// hasNothing is left of a cluster: no resource, place, namespace, or work.
func (w *road) hasNothing(cluster string) func() error {
	return func() error {
		path := "/clusters/" + cluster
		if err := w.gone(path)(); err != nil {
			return err
		}
		if err := w.Call(w.Context(), "GET", path+"/placement", nil, nil); !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("it has a place: %v", err)
		}
		if _, err := w.object(namespaces, "", apihosting.Namespace(cluster)); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the namespace is there: %v", err)
		}
		doc, err := w.operator.ListBundles(w.Context(), remote.ListOptions{Size: 400})
		if err != nil {
			return err
		}
		if strings.Contains(string(doc.JSON), cluster) {
			return fmt.Errorf("there are works: %s", doc.JSON)
		}
		return nil
	}
}

// A cluster with a node pool and a credential is created and deleted, also at each bad moment:
// before it has a place, while the plane starts, while the management cluster is away (I9). The
// place is released last, and a waiting cluster takes it.
func TestI9AClusterConvergesFromEveryStep(t *testing.T) {
	w := newRoad(t)
	w.join(3)
	first, path := w.create("first")
	pool := w.call("POST", path+"/nodepools", map[string]any{"kind": "NodePool", "name": "workers",
		"spec": map[string]any{
			"labels": map[string]any{"a": "b"}, "nodePool": map[string]any{"replicas": 2, "release": map[string]any{
				"image": "atoll.dev/release:1.36.3"},
				"platform": map[string]any{"type": "AWS", "aws": map[string]any{"instanceType": "m6a.xlarge"}}}}})
	credential := w.call("POST", path+"/credentials", map[string]any{"kind": "Credential", "name": "c1",
		"spec": map[string]any{
			"request": "PEM", "expiration_seconds": 600, "username": "ada", "expires_at": time.Now().Add(
				time.Hour).UTC().Format(time.RFC3339)}})

	hc := apihosting.HostedClusterName(first.ID)
	var plane, secret, nodes, key *unstructured.Unstructured
	w.await("POST until the HostedCluster is there", w.hosted(hypershift.HostedClusters(), first.ID, hc, &plane))
	w.await("the ExternalSecret", w.hosted(externalSecrets(), first.ID, "pull-secret", &secret))
	w.await("the NodePool", w.hosted(hypershift.NodePools(), first.ID, apihosting.NodePoolName(hc, "workers"), &nodes))
	w.await("the Credential", w.hosted(apihosting.Credentials(), first.ID, apihosting.CredentialName(credential.ID),
		&key))

	second, secondPath := w.create("second") // its plane only ever starts
	third, thirdPath := w.create("third")
	w.await("the region is full", func() error {
		return errors.Join(w.condition(secondPath, "PlacementSuccessful", "True", "Placed")(),
			w.condition(thirdPath, "PlacementSuccessful", "True", "Placed")())
	})
	homeless, homelessPath := w.create("homeless")
	next, nextPath := w.create("next")
	w.await("who finds no place says so", func() error {
		return errors.Join(w.condition(homelessPath, "HostedClusterSuccessful", "False", "NoCapacity")(),
			w.condition(nextPath, "PlacementSuccessful", "False", "NoCapacity")())
	})
	w.delete(homelessPath)
	w.await("deleted before it had a place", w.hasNothing(homeless.ID))

	w.report(hypershift.HostedClusters(), plane, 1, nil, "Available", "False", "PlaneStarting", "the plane is starting",
		"ValidReleaseImage", "True", "AsExpected", "")
	w.await("the customer sees that the plane starts", w.condition(path, "HostedClusterSuccessful", "False",
		"PlaneStarting"))
	running := map[string]any{"controlPlaneEndpoint": map[string]any{"host": "127.0.0.1", "port": int64(6443)},
		"power": "Awake"}
	w.report(hypershift.HostedClusters(), plane, 1, running, "Available", "True", "AsExpected", "the API answers",
		"KubeAPIServerAvailable", "True", "AsExpected", "")
	w.report(externalSecrets(), secret, 1, nil, "Ready", "True", "SecretSynced", "")
	w.report(hypershift.NodePools(), nodes, 1, map[string]any{"replicas": int64(2)}, "Ready", "True", "AsExpected",
		"2 of 2 nodes are ready")
	w.report(apihosting.Credentials(), key, 1, map[string]any{"certificate": "CERT", "caBundle": "CA",
		"server": "https://127.0.0.1:6443", "tlsServerName": hc + ".hosted.test"},
		"Issued", "True", "Issued", "")
	w.await("the cluster is Reconciled", w.reconciled(path, 1))
	w.await("the node pool is Reconciled", w.reconciled(path+"/nodepools/"+pool.ID, 1))
	w.await("the credential is Reconciled", w.reconciled(path+"/credentials/"+credential.ID, 1))
	var reports struct {
		Items []struct{ Data map[string]any }
	}
	if err := w.Call(t.Context(), "GET", path+"/credentials/"+credential.ID+"/statuses", nil, &reports); err != nil ||
		len(reports.Items) != 1 || reports.Items[0].Data["certificate"] != "CERT" {
		t.Errorf("the credential's report: %v, %v", reports, err)
	}

	// Hosting's status of the previous generation does not count for this one.
	w.call("PATCH", path, map[string]any{"spec": map[string]any{"hibernated": true, "hostedCluster": map[string]any{
		"pausedUntil": "true", "release": map[string]any{"image": "atoll.dev/release:1.36.3"}}}})
	w.await("the change is at the HostedCluster", func() error {
		o, err := w.object(hypershift.HostedClusters(), plane.GetNamespace(), hc)
		if paused, _, _ := unstructured.NestedString(o.Object, "spec", "pausedUntil"); err == nil &&
			(paused != "true" || o.GetAnnotations()[hypershift.HibernatedAnnotation] != "true") {
			err = fmt.Errorf("%v", o.Object)
		}
		return err
	})
	w.await("and counts as not done", w.condition(path, "HostedClusterSuccessful", "False", "Updating"))
	w.report(hypershift.HostedClusters(), plane, 2, running, "Available", "True", "Asleep", "")
	w.await("until hosting has seen it", w.reconciled(path, 2))
	w.call("PATCH", path+"/nodepools/"+pool.ID, map[string]any{"spec": map[string]any{"nodePool": map[string]any{
		"replicas": 5}}})
	w.await("the pool's replicas are at the NodePool", func() error {
		o, err := w.object(hypershift.NodePools(), nodes.GetNamespace(), nodes.GetName())
		if n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); err == nil && n != 5 {
			err = fmt.Errorf("%d", n)
		}
		return err
	})

	// While the management cluster is away deletions wait, and keep the place.
	w.stopAgent()
	w.delete(secondPath)
	w.delete(thirdPath)
	w.await("who is deleted waits for the management cluster", func() error {
		for _, cluster := range []string{second.ID, third.ID} {
			doc, err := w.operator.Bundle(t.Context(), work.BundleID("hosted-cluster", consumer, "work-"+cluster))
			if err != nil {
				return err
			}
			if !strings.Contains(string(doc.JSON), "deleted_at") {
				return errors.New("nobody has asked for the work's deletion")
			}
		}
		return nil
	})
	for _, p := range []string{secondPath, thirdPath} {
		var place struct{ State string }
		if err := w.Call(t.Context(), "GET", p+"/placement", nil, &place); err != nil || place.State != "Placed" {
			t.Errorf("the place was given back before the control plane was gone: %v, %v", place, err)
		}
	}
	w.startAgent()

	// Node pools are deleted first, then the HostedCluster, then the place. A credential that cannot
	// be revoked, because its plane does not start, delays nothing.
	w.edit(apihosting.Credentials(), key, `{"metadata":{"finalizers":["hosting.atoll.dev/credential"]}}`)
	w.edit(hypershift.NodePools(), nodes, `{"metadata":{"finalizers":["hosting.atoll.dev/drain"]}}`)
	w.edit(hypershift.HostedClusters(), plane, `{"metadata":{"finalizers":["hosting.atoll.dev/plane"]}}`)
	w.delete(path)
	w.await("the NodePool is to go", w.markDeleted(hypershift.NodePools(), nodes))
	w.await("the Credential is to go", w.markDeleted(apihosting.Credentials(), key))
	w.await("the cluster waits for what is below it", w.condition(path, "HostedClusterSuccessful", "False", "Deleting"))
	if err := w.markDeleted(hypershift.HostedClusters(), plane)(); err == nil {
		t.Error("the HostedCluster is to go while there are nodes")
	}
	w.edit(hypershift.NodePools(), nodes, `{"metadata":{"finalizers":null}}`)
	w.await("then the HostedCluster", w.markDeleted(hypershift.HostedClusters(), plane))
	w.edit(apihosting.Credentials(), key, `{"metadata":{"finalizers":null}}`)
	if err := w.Call(t.Context(), "GET", path+"/placement", nil, nil); err != nil {
		t.Errorf("the place was given back before the control plane was gone: %v", err)
	}
	w.edit(hypershift.HostedClusters(), plane, `{"metadata":{"finalizers":null}}`)
	for _, cluster := range []string{first.ID, second.ID, third.ID} {
		w.await("nothing is left of "+cluster, w.hasNothing(cluster))
	}
	w.await("who waited for a place has it", w.hosted(hypershift.HostedClusters(), next.ID,
		apihosting.HostedClusterName(next.ID), &plane))
}
