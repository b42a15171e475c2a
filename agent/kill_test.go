package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/plane/planetest"
)

// childEnv makes this test binary an agent: a process that can be killed.
const childEnv = "ATOLL_AGENT_TEST_CHILD"

func TestMain(m *testing.M) {
	if file := os.Getenv(childEnv); file != "" {
		if err := serveChild(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(planetest.Main(m))
}

type childConfig struct {
	Consumer, Addr, BrokerHost, Dir string
	Host, Token                     string
	KubeCA, CA, Cert, Key           []byte
}

func serveChild(file string) error {
	FitProcess()
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var c childConfig
	if err := json.Unmarshal(data, &c); err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(c.Cert, c.Key)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.CA)
	a, err := New(Options{
		Consumer: work.Consumer(c.Consumer), BrokerHost: c.BrokerHost, DataDir: c.Dir,
		Kube: &rest.Config{Host: c.Host, BearerToken: c.Token, TLSClientConfig: rest.TLSClientConfig{CAData: c.KubeCA}},
		Bus: bus.ClientOptions{Addr: c.Addr, TLS: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool,
			MinVersion: tls.VersionTLS13}},
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return a.Run(ctx)
}

// child is an agent in a process of its own, which dies with the test.
type child struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func startChild(t *testing.T, w *world) *child {
	t.Helper()
	cfg := w.broker.ca.config(t, string(w.consumer))
	key, err := x509.MarshalPKCS8PrivateKey(cfg.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	data, err := json.Marshal(childConfig{
		Consumer: string(w.consumer), Addr: w.broker.addr, BrokerHost: "broker.test:" + string(w.consumer), Dir: w.dir,
		Host: w.cluster.agent.Host, Token: w.cluster.agent.BearerToken, KubeCA: w.cluster.agent.CAData,
		CA: encode("CERTIFICATE", w.broker.ca.cert.Raw), Cert: encode("CERTIFICATE",
			cfg.Certificates[0].Certificate[0]), Key: encode("PRIVATE KEY", key),
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "agent.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: exec.Command(os.Args[0], "-test.run=^$"), done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), childEnv+"="+file)
	c.cmd.Stderr = t.Output()
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() { // the thread that starts it must live as long as it
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		started <- err
		if err == nil {
			_ = c.cmd.Wait()
		}
		close(c.done)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	return c
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
}

// After kills of the agent at any moment the cluster converges to exactly the ordered works,
// deletions included (I9, I12).
func TestI12TheAgentConvergesAfterKills(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	c, ns := sharedCluster(t)
	w := &world{cluster: c, ns: ns, consumer: work.Consumer(ns), broker: startBroker(t), dir: t.TempDir()}
	w.server = startServer(t, w.broker, w.consumer)

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
	for range 15 {
		agent := startChild(t, w)
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
		agent.kill()
	}
	startChild(t, w)
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
