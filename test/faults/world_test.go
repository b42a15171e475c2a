package faults

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/work"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/pgtest"
	"atoll.dev/pki"
	"atoll.dev/test/testsite"
)

// world holds all parts of the test: site, servers, broker, agents and their clusters.
type world struct {
	t      *testing.T
	site   *testsite.Site
	random *rand.Rand
	broker *testsite.Broker
	wire   *wire

	servers []*process
	clients []*maestroclient.Client
	agents  []*process
	kubes   []*kubeAPI

	mu        sync.Mutex
	requested [clusters]map[string]string    // requested works by cluster: id -> value
	deleted   [clusters]map[string]time.Time // when the deletion of an id was last requested
	changes   int
	counts    map[string]int
	why       string // text of the first failure
}

func newWorld(t *testing.T, seed uint64, compareEvery time.Duration) *world {
	w := &world{t: t, site: testsite.New(t), random: rand.New(rand.NewPCG(seed, 1)), counts: map[string]int{}}
	w.broker = w.site.StartBroker()
	w.wire = newWire(t, w.site, seed, w.broker.Address)
	dsn := pgtest.DSN(t)
	for range servers {
		c := childConfig{
			Kind:   "maestro",
			Broker: w.wire.addr,
			DSN:    dsn,
			HTTP:   testsite.FreeAddress(t),
			GRPC:   testsite.FreeAddress(t),
		}
		p := newProcess(w.site, pki.ServiceName("maestro"), c)
		p.Start()
		w.servers = append(w.servers, p)
		m, err := maestroclient.New(maestroclient.Options{
			HTTP: "https://" + c.HTTP, GRPC: c.GRPC, TLS: w.site.ClientTLS(pki.ServiceName("platform"),
				"maestro"), Source: source, Timeout: 3 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		w.clients = append(w.clients, m)
	}
	for n := range clusters {
		w.requested[n], w.deleted[n] = map[string]string{}, map[string]time.Time{}
		w.kubes = append(w.kubes, newKube(t, func(name string, made time.Time) { w.removed(n, name, made) }))
		p := newProcess(w.site, pki.Name(consumer(n)), childConfig{
			Kind: "agent", Broker: w.wire.addr, Consumer: consumer(n), Kube: w.kubes[n].server.URL,
			Store: filepath.Join(t.TempDir(), "store"), Wall: filepath.Join(t.TempDir(), "wall"),
			CompareEvery: compareEvery,
		})
		w.agents = append(w.agents, p)
	}
	w.register()
	for _, a := range w.agents {
		a.Start()
	}
	return w
}

func consumer(n int) string { return fmt.Sprintf("mc%d", n) }

// removed is called when an object was deleted from a cluster; the object's name is its
// work's id. It fails the test unless the deletion was requested after the object was
// created (I8).
func (w *world) removed(n int, id string, made time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.deleted[n][id].Before(made) {
		w.recordFailure("%s was deleted on %s without a request", id, consumer(n))
	}
}

// recordFailure fails the test and keeps the first failure's text. The caller holds the lock.
func (w *world) recordFailure(format string, args ...any) {
	why := fmt.Sprintf(format, args...)
	w.why = cmp.Or(w.why, why)
	w.t.Error(why)
}

func (w *world) fatal(format string, args ...any) {
	w.t.Helper()
	w.mu.Lock()
	w.recordFailure(format, args...)
	w.mu.Unlock()
	w.t.FailNow()
}

// retry calls f until it succeeds, with any server that answers.
func (w *world) retry(what string, f func(context.Context, *maestroclient.Client) error) {
	deadline := time.Now().Add(recoveryTimeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for try := 0; ; try++ {
		ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
		err := f(ctx, w.clients[try%len(w.clients)])
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.fatal("in vain: %s: %v", what, err)
		}
		<-tick.C
	}
}

func statusOf(err error) int {
	var e *remote.Error
	if errors.As(err, &e) {
		return e.Status
	}
	return 0
}

// register creates the consumers.
func (w *world) register() {
	for n := range clusters {
		w.retry("registering "+consumer(n), func(ctx context.Context, m *maestroclient.Client) error {
			_, err := m.CreateConsumer(ctx, work.Consumer(consumer(n)), nil)
			if statusOf(err) == 409 {
				return nil
			}
			return err
		})
	}
}

func bundle(n int, id, value string) maestroclient.Bundle {
	manifest, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": id, "namespace": "default"},
		"data": map[string]string{"value": value},
	})
	if err != nil {
		panic(err)
	}
	return maestroclient.Bundle{ID: work.ID(id), Consumer: work.Consumer(consumer(n)),
		Metadata: metav1.ObjectMeta{Name: id,
			Namespace: consumer(n)},
		Spec: work.Bundle{Manifests: []json.RawMessage{manifest}}}
}

// apply requests a work with a value. While an earlier deletion of the work goes on, it retries.
func (w *world) apply(n int, id, value string) {
	w.retry("applying "+id, func(ctx context.Context, m *maestroclient.Client) error {
		return update(ctx, m, bundle(n, id, value))
	})
	w.recordApplied(n, id, value)
}

// tryApply requests a work with a value. While an earlier deletion of the work goes on, it does nothing.
func (w *world) tryApply(n int, id, value string) {
	isDeleting := false
	w.retry("applying "+id, func(ctx context.Context, m *maestroclient.Client) error {
		err := update(ctx, m, bundle(n, id, value))
		if isDeleting = statusOf(err) == 409; isDeleting { // or an earlier attempt has created the work
			return nil
		}
		return err
	})
	if !isDeleting {
		w.recordApplied(n, id, value)
	}
}

// update updates a bundle, or creates it if it does not exist.
func update(ctx context.Context, m *maestroclient.Client, b maestroclient.Bundle) error {
	_, err := m.UpdateBundle(ctx, b)
	if statusOf(err) == 404 {
		_, err = m.CreateBundle(ctx, b)
	}
	return err
}

// recordApplied records that a work is requested with a value.
func (w *world) recordApplied(n int, id, value string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, there := w.requested[n][id]; !there {
		w.deleted[n][id] = time.Now() // an earlier deletion may still delete an object that was created before
	}
	w.requested[n][id] = value
	w.changes++
}

func (w *world) requestDeletion(n int, id string) {
	w.mu.Lock()
	delete(w.requested[n], id)
	w.deleted[n][id] = time.Now().Add(time.Hour) // from now on it may be deleted at any time
	w.changes++
	w.mu.Unlock()
	w.retry("deleting "+id, func(ctx context.Context, m *maestroclient.Client) error {
		return m.PublishDeletion(ctx, bundle(n, id, ""))
	})
}
