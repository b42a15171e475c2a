package hosted

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
)

// customer owns one cluster and writes into it.
type customer struct {
	id, name string
	maps     dynamic.ResourceInterface // ConfigMaps in the namespace default of the cluster

	mu      sync.Mutex
	written int // ConfigMaps written-0 to written-(n-1) were acknowledged
	counted int // the last acknowledged value of the ConfigMap counter
	tries   int // calls that were not acknowledged
}

// createCustomer orders a cluster and gets a kubeconfig for it.
func (w *world) createCustomer(name string) *customer {
	w.t.Helper()
	made, err := w.api.CreateCluster(w.t.Context(), platform.ClusterRequest{Name: name})
	if err != nil {
		w.t.Fatal(err)
	}
	c := &customer{id: made.ID, name: name}
	w.eventually("cluster "+name+" is ready", func() error { return w.ready(c.id) })
	credential, err := w.api.CreateCredential(w.t.Context(), cluster.ID(c.id),
		platform.CredentialRequest{ExpirationSeconds: 6 * 3600})
	if err != nil {
		w.t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(credential.Kubeconfig))
	if err != nil {
		w.t.Fatal(err)
	}
	// A call on a hanging connection times out and is repeated on another connection.
	config.Timeout, config.QPS, config.Burst = 20*time.Second, -1, 0
	kube, err := dynamic.NewForConfig(config)
	if err != nil {
		w.t.Fatal(err)
	}
	c.maps = kube.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("default")
	return c
}

func (w *world) ready(id string) error {
	c, err := w.api.Cluster(context.Background(), cluster.ID(id))
	if err != nil {
		return err
	}
	if c.Status.Phase != platform.ClusterPhaseReady {
		return fmt.Errorf("cluster %s is %s: %s: %s", c.Name, c.Status.Phase, c.Status.Reason, c.Status.Message)
	}
	return nil
}

// write makes ConfigMaps and counts in one, each call again until it is
// acknowledged, until ctx ends.
func (c *customer) write(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		named := func(name string) *unstructured.Unstructured {
			return &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name},
				"data": map[string]any{"n": strconv.Itoa(n)},
			}}
		}
		done := c.until(ctx, func() error {
			_, err := c.maps.Create(ctx, named(fmt.Sprintf("written-%d", n)), metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) { // the answer was lost before
				return nil
			}
			return err
		})
		if !done {
			return
		}
		c.mu.Lock()
		c.written = n + 1
		c.mu.Unlock()
		done = c.until(ctx, func() error {
			_, err := c.maps.Update(ctx, named("counter"), metav1.UpdateOptions{})
			if apierrors.IsNotFound(err) && n == 0 {
				_, err = c.maps.Create(ctx, named("counter"), metav1.CreateOptions{})
			}
			return err
		})
		if !done {
			return
		}
		c.mu.Lock()
		c.counted = n
		c.mu.Unlock()
	}
}

// hasWritten returns an error until the first ConfigMap of the customer is acknowledged.
func (c *customer) hasWritten() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.written == 0 {
		return fmt.Errorf("%s has no acknowledged ConfigMap after %d calls", c.name, c.tries)
	}
	return nil
}

// until calls f until it is nil (true) or ctx ends.
func (c *customer) until(ctx context.Context, f func() error) bool {
	for ctx.Err() == nil {
		if f() == nil {
			return true
		}
		c.mu.Lock()
		c.tries++
		c.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return false
}

// checkAcknowledged returns an error when acknowledged data is missing.
func (c *customer) checkAcknowledged(ctx context.Context) error {
	list, err := c.maps.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	there := map[string]string{}
	for _, m := range list.Items {
		there[m.GetName()], _, _ = unstructured.NestedString(m.Object, "data", "n")
	}
	var missing []string
	for n := range c.written {
		if name := fmt.Sprintf("written-%d", n); there[name] != strconv.Itoa(n) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("lost in %s: %s", c.name, strings.Join(missing, ", "))
	}
	if n, err := strconv.Atoi(there["counter"]); c.written > 1 && (err != nil || n < c.counted) {
		return fmt.Errorf("the counter of %s is %q, and %d was acknowledged", c.name, there["counter"], c.counted)
	}
	return nil
}

// churn creates and deletes clusters until ctx ends, and returns how many. Some
// are deleted before they are ready. Each call is made again until it is
// answered; at the end all are deleted, or their deletion is ordered.
func (w *world) churn(ctx context.Context, name string, waits func() time.Duration) (cycles int) {
	again := func(what string, f func() error) {
		for begun := time.Now(); !w.t.Failed(); {
			err := f()
			if err == nil {
				return
			}
			if s := remote.StatusOf(err); s >= 400 && s < 500 && s != 404 && s != 408 && s != 409 && s != 429 ||
				time.Since(begun) > recoveryTimeout {
				w.t.Errorf("%s %s: %v", what, name, err)
				return
			}
			<-time.After(100 * time.Millisecond)
		}
	}
	for n := 0; ctx.Err() == nil && !w.t.Failed(); n++ {
		name := fmt.Sprintf("%s-%d", name, n)
		id := ""
		again("creating", func() error {
			made, err := w.api.CreateCluster(context.Background(), platform.ClusterRequest{Name: name})
			if remote.StatusOf(err) == 409 { // an earlier call did it, and its answer was lost
				list, lerr := w.api.Clusters(context.Background(), client.ClusterQuery{Name: name})
				if lerr != nil || len(list) == 0 {
					return err
				}
				made.ID, err = list[0].ID, nil
			}
			id = made.ID
			return err
		})
		select {
		case <-ctx.Done():
		case <-time.After(waits()):
		}
		again("deleting", func() error {
			err := w.api.DeleteCluster(context.Background(), cluster.ID(id), client.DeleteOptions{})
			if remote.StatusOf(err) == 404 {
				return nil
			}
			return err
		})
		cycles++
	}
	return cycles
}
