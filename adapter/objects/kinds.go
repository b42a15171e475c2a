package objects

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// errNoSuchKind means that the API server's discovery does not have the kind.
var errNoSuchKind = errors.New("the API server has no such kind")

// kindOf describes a kind as the API server's discovery does.
type kindOf struct {
	resource   schema.GroupVersionResource
	namespaced bool
}

// kinds caches the API server's discovery. It reads only the group and version of a kind, so that a
// broken API group does not affect other kinds. Only a 404 means that a kind does not exist; after
// another error the adapter must not conclude that there are no objects.
type kinds struct {
	client *discovery.DiscoveryClient

	mu    sync.Mutex
	known map[schema.GroupVersionKind]kindOf
}

func newKinds(c *discovery.DiscoveryClient) *kinds {
	return &kinds{client: c, known: map[schema.GroupVersionKind]kindOf{}}
}

// find returns the description of a kind, from the cache or from discovery, or errNoSuchKind.
func (k *kinds) find(ctx context.Context, gvk schema.GroupVersionKind) (kindOf, error) {
	if gvk.Kind == "" || gvk.Version == "" {
		return kindOf{}, errors.New("an object needs apiVersion and kind")
	}
	k.mu.Lock()
	found, ok := k.known[gvk]
	k.mu.Unlock()
	if ok {
		return found, nil
	}
	path := "/apis/" + gvk.GroupVersion().String()
	if gvk.Group == "" {
		path = "/api/" + gvk.Version
	}
	var list metav1.APIResourceList
	err := k.client.RESTClient().Get().AbsPath(path).Do(ctx).Into(&list)
	if apierrors.IsNotFound(err) {
		return kindOf{}, fmt.Errorf("%w: %s", errNoSuchKind, gvk)
	}
	if err != nil {
		return kindOf{}, fmt.Errorf("reading the kinds of %s: %w", gvk.GroupVersion(), err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range list.APIResources {
		if !strings.Contains(r.Name, "/") { // not a subresource
			k.known[gvk.GroupVersion().WithKind(r.Kind)] = kindOf{gvk.GroupVersion().WithResource(r.Name), r.Namespaced}
		}
	}
	if found, ok = k.known[gvk]; !ok {
		return kindOf{}, fmt.Errorf("%w: %s", errNoSuchKind, gvk)
	}
	return found, nil
}

// forget removes a kind from the cache: somebody may have deleted it, or created it with another
// scope.
func (k *kinds) forget(gvk schema.GroupVersionKind) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.known, gvk)
}

// ready returns nil when the API server answers within two seconds.
func (k *kinds) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err := k.client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("the Kubernetes API: %w", err)
	}
	return nil
}
