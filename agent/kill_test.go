package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/pki"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testsite"
)

// TestMain makes this test binary an agent, too: a process that can be killed.
func TestMain(m *testing.M) {
	os.Exit(testsite.Main(func() int { return planetest.Main(m) }, serveChild))
}

type childConfig struct {
	Consumer                      work.Consumer
	Broker, BrokerHost, Dir, Host string
	Token                         string
	KubeCA                        []byte
}

// serveChild runs the agent. It is up at once: a kill may come before the agent has opened its store.
func serveChild(ctx context.Context, c childConfig, id testsite.Identity, log *slog.Logger, up func()) error {
	up()
	FitProcess()
	a, err := New(Options{
		Consumer: c.Consumer, BrokerHost: c.BrokerHost, DataDir: c.Dir,
		Kube: &rest.Config{Host: c.Host, BearerToken: c.Token, TLSClientConfig: rest.TLSClientConfig{CAData: c.KubeCA}},
		Bus:  bus.ClientOptions{Addr: c.Broker, TLS: id.ClientTLS("broker")}, Log: log,
	})
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// child returns the agent of the world as a process.
func (w *world) child() *testsite.Process {
	return w.site.Process("the agent", pki.Name(w.consumer), childConfig{
		Consumer: w.consumer, Broker: w.broker.Address, BrokerHost: "broker.test:" + string(w.consumer), Dir: w.dir,
		Host: w.cluster.agent.Host, Token: w.cluster.agent.BearerToken, KubeCA: w.cluster.agent.CAData,
	})
}

// After kills of the agent at any moment the cluster converges to exactly the ordered works,
// deletions included (I9, I12).
func TestI12TheAgentConvergesAfterKills(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	c, ns := sharedCluster(t)
	w := newSite(t, c, ns, work.Consumer(ns))

	ordered := map[string]map[string]string{} // objects of each work, with their value
	value := 0
	change := func() {
		id := fmt.Sprint("work-", r.IntN(12))
		w.server.mu.Lock()
		b := w.server.bundles[id]
		busy := b != nil && b.deleting
		w.server.mu.Unlock()
		if busy { // it cannot be ordered again before it is gone
			return
		}
		if ordered[id] != nil && b != nil && r.IntN(4) == 0 {
			delete(ordered, id)
			w.server.delete(work.ID(id))
			return
		}
		value++
		objects := map[string]string{}
		for n := range 4 {
			if r.IntN(2) == 0 {
				objects[fmt.Sprint(id, "-", n)] = fmt.Sprint(value)
			}
		}
		bundle := manifests()
		for _, name := range slices.Sorted(maps.Keys(objects)) {
			bundle.Manifests = append(bundle.Manifests, configMap(ns, name, "k", objects[name]))
		}
		ordered[id] = objects
		w.server.apply(work.ID(id), bundle)
	}
	agent := w.child()
	for range 15 {
		agent.Start()
		w.server.mu.Lock()
		until := w.server.statuses + r.IntN(25)
		resyncs := len(w.server.resyncs)
		w.server.mu.Unlock()
		for range 1 + r.IntN(12) {
			change()
		}
		moment := time.After(time.Duration(r.IntN(400)) * time.Millisecond)
		for waiting := true; waiting; {
			w.server.mu.Lock()
			enough, changed := w.server.statuses >= until && len(w.server.resyncs) > resyncs, w.server.changed
			w.server.mu.Unlock()
			if enough {
				break
			}
			select {
			case <-changed:
			case <-moment:
				waiting = false
			}
		}
		agent.Kill()
	}
	agent.Start()
	want := map[string]string{}
	for id, objects := range ordered {
		maps.Copy(want, objects)
		if len(objects) > 0 {
			w.server.awaitApplied(work.ID(id))
		}
	}
	w.server.await("the deletions", func() bool { return len(w.server.bundles) == len(ordered) })
	for id, b := range w.server.bundles {
		if len(ordered[id]) > 0 {
			continue
		}
		w.server.await(id+" without manifests", func() bool {
			return w.server.has(work.ID(id), workv1.WorkAvailable,
				metav1.ConditionUnknown) && !b.deleting
		})
	}
	missing := ""
	defer func() {
		if t.Failed() {
			t.Log(missing)
		}
	}()
	w.await(t, "exactly the objects ordered", configMaps, ns, func(all map[string]*unstructured.Unstructured) bool {
		got := map[string]string{}
		defer func() {
			missing = fmt.Sprintf("there is %v, want %v", got, want)
			for name, u := range all {
				if want[name] == "" {
					missing += fmt.Sprintf("\nleft behind: version %s %v", u.GetResourceVersion(), u.Object["metadata"])
				}
			}
		}()
		for name, u := range all {
			if name != "kube-root-ca.crt" {
				got[name] = dataOf(u, "k")
			}
		}
		return maps.Equal(got, want)
	})
	w.await(t, "AppliedManifestWorks that list them", appliedWorks, "",
		func(all map[string]*unstructured.Unstructured) bool {
			n := 0
			missing = fmt.Sprint("of ", slices.Sorted(maps.Keys(ordered)), " some have none")
			for name, u := range all {
				for id := range ordered {
					if name == w.amw(work.ID(id)) {
						n++
						if len(appliedResourcesOf(u)) != len(ordered[id]) {
							missing = fmt.Sprintf("%s (deleting: %v) lists %v, want %v", id, u.GetDeletionTimestamp(),
								appliedResourcesOf(u), ordered[id])
							return false
						}
					}
				}
			}
			return n == len(ordered)
		})
}
