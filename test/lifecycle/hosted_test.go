package lifecycle

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/api/hypershift"
	"atoll.dev/api/work"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/test/testworld"
)

// hostedWorld is a region with the adapters of hosted clusters, and one management cluster whose hosting
// is the test itself: the test reports the state of a plane.
type hostedWorld struct {
	*testworld.World
	mc *testworld.Cluster
}

func newHostedWorld(t *testing.T) *hostedWorld {
	t.Helper()
	w := testworld.Start(t, testworld.Options{Fleet: true, Clusters: []work.Consumer{consumer}, Hosting: true,
		Adapters: []string{"placement", "pull-secret", "hosted-cluster", "node-pool", "credential"},
		Env:      map[string]string{"ATOLL_BASE_DOMAIN": "hosted.test"}})
	return &hostedWorld{w, w.Clusters[consumer]}
}

// join makes the management cluster known to the lifecycle manager.
func (w *hostedWorld) join(planes int) {
	w.T.Helper()
	w.Create("managementclusters", "ManagementCluster", consumer,
		fmt.Sprintf(`{"capacity":{"planes":%d},"versions":["1.36.3"]}`, planes), nil)
}

// create creates a cluster.
func (w *hostedWorld) create(name string) clmclient.Resource {
	w.T.Helper()
	return w.Create(clusters, "Cluster", name, `{"hostedCluster":{"release":{"image":"atoll.dev/release:1.36.3"}}}`, nil)
}

// awaitHosted waits until a cluster has an object of a kind, and returns it.
func (w *hostedWorld) awaitHosted(kind schema.GroupVersionResource, cluster,
	name string) (o *unstructured.Unstructured) {
	w.T.Helper()
	w.Await(kind.Resource+" "+name+" is there", func() (err error) {
		o, err = w.mc.Object(kind, apihosting.Namespace(cluster), name)
		return err
	})
	return o
}

// report writes hosting's status of an object.
func (w *hostedWorld) report(kind schema.GroupVersionResource, o *unstructured.Unstructured, generation int64,
	status map[string]any, conditions ...string) {
	w.T.Helper()
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
	w.Await("hosting reports on "+o.GetName(), func() error {
		now, err := w.mc.Object(kind, o.GetNamespace(), o.GetName())
		if err != nil {
			return err
		}
		now.Object["status"] = status
		_, err = w.mc.In(kind, o.GetNamespace()).UpdateStatus(w.T.Context(), now, metav1.UpdateOptions{})
		return err
	})
}

func externalSecrets() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "external-secrets.io", Version: "v1", Resource: "externalsecrets"}
}

// edit changes an object as hosting does, which sets finalizers.
func (w *hostedWorld) edit(kind schema.GroupVersionResource, o *unstructured.Unstructured, patch string) {
	w.T.Helper()
	_, err := w.mc.In(kind, o.GetNamespace()).Patch(w.T.Context(), o.GetName(), types.MergePatchType,
		[]byte(patch), metav1.PatchOptions{FieldManager: "hosting"})
	if err != nil {
		w.T.Fatal(err)
	}
}

// checkDeleting returns an error unless an object is being deleted.
func (w *hostedWorld) checkDeleting(kind schema.GroupVersionResource, o *unstructured.Unstructured) error {
	now, err := w.mc.Object(kind, o.GetNamespace(), o.GetName())
	if err == nil && now.GetDeletionTimestamp() == nil {
		err = errors.New("nobody has asked for its deletion")
	}
	return err
}

// awaitDeleting waits until the deletion of an object was requested.
func (w *hostedWorld) awaitDeleting(kind schema.GroupVersionResource, o *unstructured.Unstructured) {
	w.T.Helper()
	w.Await(kind.Resource+" "+o.GetName()+" is being deleted", func() error { return w.checkDeleting(kind, o) })
}

// awaitNothing waits until nothing is left of a cluster: no resource, place, namespace, or work.
func (w *hostedWorld) awaitNothing(id string) {
	w.T.Helper()
	operator := w.Dial("operator")
	w.AwaitGone(clusters, id)
	w.Await("nothing is left of "+id, func() error {
		if _, err := w.Client.Placement(w.T.Context(), cluster.ID(id)); remote.StatusOf(err) != http.StatusNotFound {
			return fmt.Errorf("it has a place: %v", err)
		}
		if _, err := w.mc.Object(namespaces, "", apihosting.Namespace(id)); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the namespace is there: %v", err)
		}
		doc, err := operator.ListBundles(w.T.Context(), remote.ListOptions{Size: 400})
		if err != nil {
			return err
		}
		if strings.Contains(string(doc.JSON), id) {
			return fmt.Errorf("there are works: %s", doc.JSON)
		}
		return nil
	})
}

// checkPlaced fails the test unless a cluster has its place.
func (w *hostedWorld) checkPlaced(id string) {
	w.T.Helper()
	if p, err := w.Client.Placement(w.T.Context(), cluster.ID(id)); err != nil || p.State != "Placed" {
		w.T.Errorf("the place was given back before the control plane was gone: %v, %v", p, err)
	}
}

// A cluster with a node pool and a credential is created and deleted, also at each bad moment:
// before it has a place, while the plane starts, while the management cluster is away (I9). The
// place is released last, and a waiting cluster takes it.
func TestI9AClusterConvergesFromEveryStep(t *testing.T) {
	w := newHostedWorld(t)
	w.join(3)
	first := w.create("first")
	pools, credentials := clusters.Below(first.ID, "nodepools"), clusters.Below(first.ID, "credentials")
	pool := w.Create(pools, "NodePool", "workers", `{"labels":{"a":"b"},"nodePool":{"replicas":2,
		"release":{"image":"atoll.dev/release:1.36.3"},
		"platform":{"type":"AWS","aws":{"instanceType":"m6a.xlarge"}}}}`, nil)
	credential := w.Create(credentials, "Credential", "c1", fmt.Sprintf(`{"request":"PEM","expiration_seconds":600,
		"username":"ada","expires_at":%q}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339)), nil)

	hc := apihosting.HostedClusterName(first.ID)
	plane := w.awaitHosted(hypershift.HostedClusters(), first.ID, hc)
	secret := w.awaitHosted(externalSecrets(), first.ID, "pull-secret")
	nodes := w.awaitHosted(hypershift.NodePools(), first.ID, apihosting.NodePoolName(hc, "workers"))
	key := w.awaitHosted(apihosting.Credentials(), first.ID, apihosting.CredentialName(credential.ID))

	second, third := w.create("second"), w.create("third") // the plane of the second only ever starts
	w.AwaitCondition(clusters, second.ID, "PlacementSuccessful", "True", "Placed")
	w.AwaitCondition(clusters, third.ID, "PlacementSuccessful", "True", "Placed")
	unplaced, next := w.create("unplaced"), w.create("next") // the region is full
	w.AwaitCondition(clusters, unplaced.ID, "HostedClusterSuccessful", "False", "NoCapacity")
	w.AwaitCondition(clusters, next.ID, "PlacementSuccessful", "False", "NoCapacity")
	w.Delete(clusters, unplaced.ID)
	w.awaitNothing(unplaced.ID) // deleted before it had a place

	w.report(hypershift.HostedClusters(), plane, 1, nil, "Available", "False", "PlaneStarting", "the plane is starting",
		"ValidReleaseImage", "True", "AsExpected", "")
	w.AwaitCondition(clusters, first.ID, "HostedClusterSuccessful", "False", "PlaneStarting")
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
	w.AwaitReconciled(clusters, first.ID, 1)
	w.AwaitReconciled(pools, pool.ID, 1)
	w.AwaitReconciled(credentials, credential.ID, 1)
	var data struct{ Certificate string }
	reports, err := w.Client.Statuses(t.Context(), credentials, credential.ID)
	if err == nil && len(reports) == 1 {
		err = json.Unmarshal(reports[0].Data, &data)
	}
	if err != nil || data.Certificate != "CERT" {
		t.Errorf("the credential's report: %v, %v", reports, err)
	}

	// Hosting's status of the previous generation does not count for this one.
	w.Replace(clusters, first.ID, `{"spec":{"hibernated":true,"hostedCluster":{"pausedUntil":"true",
		"release":{"image":"atoll.dev/release:1.36.3"}}}}`)
	w.Await("the change is at the HostedCluster", func() error {
		o, err := w.mc.Object(hypershift.HostedClusters(), plane.GetNamespace(), hc)
		if err != nil {
			return err
		}
		if paused, _, _ := unstructured.NestedString(o.Object, "spec", "pausedUntil"); paused != "true" ||
			o.GetAnnotations()[hypershift.HibernatedAnnotation] != "true" {
			return fmt.Errorf("%v", o.Object)
		}
		return nil
	})
	w.AwaitCondition(clusters, first.ID, "HostedClusterSuccessful", "False", "Updating")
	w.report(hypershift.HostedClusters(), plane, 2, running, "Available", "True", "Asleep", "")
	w.AwaitReconciled(clusters, first.ID, 2) // hosting has seen the change
	w.Replace(pools, pool.ID, `{"spec":{"nodePool":{"replicas":5}}}`)
	w.Await("the pool's replicas are at the NodePool", func() error {
		o, err := w.mc.Object(hypershift.NodePools(), nodes.GetNamespace(), nodes.GetName())
		if err != nil {
			return err
		}
		if n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); n != 5 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})

	// While the management cluster is away deletions wait, and keep the place.
	w.mc.Agent.Stop()
	w.Delete(clusters, second.ID)
	w.Delete(clusters, third.ID)
	operator := w.Dial("operator")
	w.Await("deleted clusters wait for the management cluster", func() error {
		for _, id := range []string{second.ID, third.ID} {
			doc, err := operator.Bundle(t.Context(), work.BundleID("hosted-cluster", consumer, "work-"+id))
			if err != nil {
				return err
			}
			if !strings.Contains(string(doc.JSON), "deleted_at") {
				return errors.New("nobody has asked for the work's deletion")
			}
		}
		return nil
	})
	w.checkPlaced(second.ID)
	w.checkPlaced(third.ID)
	w.mc.Agent.Start()

	// Node pools are deleted first, then the HostedCluster, then the place. A credential that cannot
	// be revoked, because its plane does not start, delays nothing.
	w.edit(apihosting.Credentials(), key, `{"metadata":{"finalizers":["hosting.atoll.dev/credential"]}}`)
	w.edit(hypershift.NodePools(), nodes, `{"metadata":{"finalizers":["hosting.atoll.dev/drain"]}}`)
	w.edit(hypershift.HostedClusters(), plane, `{"metadata":{"finalizers":["hosting.atoll.dev/plane"]}}`)
	w.Delete(clusters, first.ID)
	w.awaitDeleting(hypershift.NodePools(), nodes)
	w.awaitDeleting(apihosting.Credentials(), key)
	w.AwaitCondition(clusters, first.ID, "HostedClusterSuccessful", "False", "Deleting")
	if err := w.checkDeleting(hypershift.HostedClusters(), plane); err == nil {
		t.Error("the HostedCluster is to go while there are nodes")
	}
	w.edit(hypershift.NodePools(), nodes, `{"metadata":{"finalizers":null}}`)
	w.awaitDeleting(hypershift.HostedClusters(), plane)
	w.edit(apihosting.Credentials(), key, `{"metadata":{"finalizers":null}}`)
	w.checkPlaced(first.ID)
	w.edit(hypershift.HostedClusters(), plane, `{"metadata":{"finalizers":null}}`)
	for _, id := range []string{first.ID, second.ID, third.ID} {
		w.awaitNothing(id)
	}
	w.awaitHosted(hypershift.HostedClusters(), next.ID, apihosting.HostedClusterName(next.ID)) // it waited for a place
}
