package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	watch "atoll.dev/internal/rest"
)

// bench is one run: the region that it measures, and the clusters that it has
// made there.
type bench struct {
	api *client.Client
	o   options
	run string // in the names of the run's clusters

	mu   sync.Mutex
	next int
	made map[string]bool // ids of clusters that are not known to be gone
}

func newBench(api *client.Client, o options) *bench {
	// names of two runs must differ, whatever the seed
	rng := rand.New(rand.NewPCG(o.Seed, uint64(time.Now().UnixNano())))
	return &bench{api: api, o: o, run: fmt.Sprintf("%06x", rng.Uint32()&0xffffff), made: map[string]bool{}}
}

// hosted is a cluster, and how to call its API.
type hosted struct {
	id, name string
	call     *http.Client
	url      string
	credID   string

	// The time from the beginning of the POST to each step.
	posted, ready, credential, answered time.Duration
}

// errHolds ends a watch when the awaited condition holds.
var errHolds = errors.New("the condition holds")

// makeCluster posts a cluster, with a node pool of so many nodes if there are to
// be some, and returns when it answers a request for its namespaces, and its
// nodes are ready.
func (b *bench) makeCluster(ctx context.Context, nodes int) (*hosted, error) {
	return b.makeClusterOf(ctx, nil, nodes)
}

// makeClusterOf is makeCluster with a spec; nil is what the region chooses.
func (b *bench) makeClusterOf(ctx context.Context, spec *platform.ClusterSpec, nodes int) (*hosted, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	b.mu.Lock()
	b.next++
	h := &hosted{name: fmt.Sprintf("bench-%s-%d", b.run, b.next)}
	b.mu.Unlock()
	begun := time.Now()
	k, err := b.api.CreateCluster(ctx, platform.ClusterRequest{Name: h.name, Spec: spec})
	if err != nil {
		return h, err
	}
	h.id, h.posted = k.ID, time.Since(begun)
	b.mu.Lock()
	b.made[h.id] = true
	b.mu.Unlock()
	var pool client.NodePool
	if nodes > 0 {
		replicas := int32(nodes)
		pool, err = b.api.CreateNodePool(ctx, platform.NodePoolRequest{ClusterID: h.id, Name: "workers",
			Spec: &platform.NodePoolSpec{Replicas: &replicas}})
		if err != nil {
			return h, err
		}
	}
	if err := b.await(ctx, h.id, func(k *platform.Cluster) bool {
		return k != nil && k.Status.Phase == platform.ClusterPhaseReady
	}); err != nil {
		return h, fmt.Errorf("cluster %s: until it is ready: %w", h.name, err)
	}
	h.ready = time.Since(begun)
	if err := b.connect(ctx, h); err != nil {
		return h, err
	}
	h.credential = time.Since(begun)
	if err := h.get(ctx, "/api/v1/namespaces"); err != nil {
		return h, err
	}
	h.answered = time.Since(begun)
	if nodes > 0 {
		err = b.awaitPool(ctx, pool.NodePool)
	}
	return h, err
}

// connect gets a kubeconfig for the cluster. A Ready cluster answers: there is
// no second try, here or at its API.
func (b *bench) connect(ctx context.Context, h *hosted) error {
	cred, err := b.api.CreateCredential(ctx, cluster.ID(h.id), platform.CredentialRequest{ExpirationSeconds: 7200})
	if err != nil {
		return fmt.Errorf("cluster %s: its credential: %w", h.name, err)
	}
	h.credID = cred.ID
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(cred.Kubeconfig))
	if err != nil {
		return fmt.Errorf("cluster %s: its kubeconfig: %w", h.name, err)
	}
	// Connections are not kept: an open one keeps a cluster awake.
	config.Wrap(func(t http.RoundTripper) http.RoundTripper { return closing{t} })
	if h.call, err = rest.HTTPClientFor(config); err != nil {
		return fmt.Errorf("cluster %s: its kubeconfig: %w", h.name, err)
	}
	h.url = config.Host
	return nil
}

// closing makes each request the last of its connection.
type closing struct{ next http.RoundTripper }

func (c closing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Close = true
	return c.next.RoundTrip(r)
}

// get asks the cluster's API.
func (h *hosted) get(ctx context.Context, path string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, h.url+path, nil)
	if err != nil {
		return err
	}
	resp, err := h.call.Do(r)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", h.name, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("cluster %s: GET %s: %d %.200s", h.name, path, resp.StatusCode, body)
	}
	return err
}

// await watches a cluster until condition returns true for it. condition gets nil when the cluster
// no longer exists.
func (b *bench) await(ctx context.Context, id string, condition func(*platform.Cluster) bool) error {
	seen := false
	err := b.api.FollowClusters(ctx, remote.WatchOptions{ID: id}, func(e remote.Event) error {
		var k *platform.Cluster
		switch {
		case e.Type == remote.Relist:
			seen = false
			return nil
		case e.Type == watch.Deleted, e.Type == watch.Bookmark && !seen:
		case len(e.Object) == 0:
			return nil
		default:
			seen = true
			if err := json.Unmarshal(e.Object, &k); err != nil {
				return err
			}
		}
		if condition(k) {
			return errHolds
		}
		return nil
	})
	if errors.Is(err, errHolds) {
		return nil
	}
	return err
}

// awaitPool watches until all nodes of a pool are ready.
func (b *bench) awaitPool(ctx context.Context, p platform.NodePool) error {
	err := b.api.FollowNodePools(ctx, cluster.ID(p.ClusterID), remote.WatchOptions{}, func(e remote.Event) error {
		var now platform.NodePool
		if len(e.Object) == 0 {
			return nil
		}
		if err := json.Unmarshal(e.Object, &now); err != nil {
			return err
		}
		if now.ID == p.ID && now.Status.Phase == platform.NodePoolPhaseReady {
			return errHolds
		}
		return nil
	})
	if errors.Is(err, errHolds) {
		return nil
	}
	return fmt.Errorf("node pool %s: until it is ready: %w", p.Name, err)
}

// remove deletes clusters at once and returns when nothing of them is left: no
// cluster in the API, no process, no file, no namespace.
func (b *bench) remove(ctx context.Context, all ...*hosted) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	begun := time.Now()
	errs := make([]error, len(all))
	var removals sync.WaitGroup
	for i, h := range all {
		removals.Go(func() { errs[i] = b.removeOne(ctx, h.id) })
	}
	removals.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	for {
		left, err := b.leftovers(ctx, all)
		if err != nil {
			return 0, err
		}
		if len(left) == 0 {
			return time.Since(begun), nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("gone for the API, and left are %s", left)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (b *bench) removeOne(ctx context.Context, id string) error {
	if err := b.api.DeleteCluster(ctx, cluster.ID(id), client.DeleteOptions{}); err != nil &&
		remote.StatusOf(err) != http.StatusNotFound {
		return err
	}
	if err := b.await(ctx, id, func(k *platform.Cluster) bool { return k == nil }); err != nil {
		return fmt.Errorf("cluster %s: until it is gone: %w", id, err)
	}
	b.mu.Lock()
	delete(b.made, id)
	b.mu.Unlock()
	return nil
}

// cleanUp deletes the clusters of a run that failed.
func (b *bench) cleanUp(ctx context.Context) error {
	b.mu.Lock()
	var left []*hosted
	for id := range b.made {
		left = append(left, &hosted{id: id})
	}
	b.mu.Unlock()
	if len(left) == 0 {
		return nil
	}
	_, err := b.remove(ctx, left...)
	return err
}
