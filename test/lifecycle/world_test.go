package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	kuberest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/access"
	"atoll.dev/adapter/objects"
	"atoll.dev/adapter/works"
	"atoll.dev/adapters"
	"atoll.dev/agent"
	"atoll.dev/bus"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/pgtest"
	"atoll.dev/maestro"
	"atoll.dev/pki"
	"atoll.dev/plane/planetest"
)

// world is a region with Maestro and one management cluster, and the adapters
// that Atoll brings along.
type world struct {
	*testing.T
	*Region
	admin dynamic.Interface
}

func newWorld(t *testing.T) *world {
	t.Helper()
	shipping := pgtest.DSN(t) // dropped after the region has ended
	region, err := Start(t.Context(), Options{DSN: pgtest.DSN(t), Entities: entities, Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, Region: region}
	t.Cleanup(func() {
		if err := region.Close(); err != nil {
			t.Error(err)
		}
	})
	m := w.maestro(shipping)
	t.Cleanup(func() {
		if doc, err := m.ListBundles(context.Background(), remote.ListOptions{}); t.Failed() {
			t.Logf("works: %s, %v", doc.JSON, err)
		}
	})
	cluster := w.cluster()
	w.agent(cluster)
	w.await("the consumer", func() error {
		_, err := m.CreateConsumer(t.Context(), consumer, nil)
		if remote.StatusOf(err) == http.StatusConflict {
			return nil // by a try whose answer was lost
		}
		return err
	})
	w.adapter("cl-maestro", Adapter{Transport: works.New(works.Options{Client: m, Log: w.log})})
	for _, name := range []string{"cl-namespace", "np-configmap"} {
		o, err := objects.New(objects.Options{Config: cluster, Adapter: name, Log: w.log})
		if err != nil {
			t.Fatal(err)
		}
		w.adapter(name, Adapter{Transport: o})
	}
	return w
}

// testLog shows the log of a test that failed.
func testLog(t testing.TB) *slog.Logger {
	var mu sync.Mutex
	var buf bytes.Buffer
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		if t.Failed() {
			t.Logf("log:\n%s", buf.String())
		}
	})
	return slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return buf.Write(p)
	}), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// maestro starts Maestro and is cl-maestro's client of it.
func (w *world) maestro(dsn string) *maestroclient.Client { return w.startMaestro(dsn)("cl-maestro") }

// startMaestro starts Maestro and returns a constructor of clients, each with the works of one
// source.
func (w *world) startMaestro(dsn string) (dial func(source string) *maestroclient.Client) {
	w.Helper()
	serve, err := w.ServerTLS("maestro")
	if err != nil {
		w.Fatal(err)
	}
	broker, err := w.ClientTLS(pki.ServiceName("maestro"), "broker")
	if err != nil {
		w.Fatal(err)
	}
	own, err := w.ClientTLS(pki.ServiceName("adapter"), "maestro")
	if err != nil {
		w.Fatal(err)
	}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			w.Fatal(err)
		}
		return l
	}
	o := maestro.Options{
		DSN: dsn, Broker: w.Broker, BrokerTLS: broker, HTTP: listen(), GRPC: listen(), HTTPTLS: serve, GRPCTLS: serve,
		MayCall: func(peer string) bool { return access.MayCall(access.MaestroHTTP, pki.Name(peer)) },
		Logger:  w.log, Metrics: prometheus.NewRegistry(), ShutdownGrace: time.Second,
	}
	lifecycle, err := w.ClientTLS(pki.ServiceName("maestro"), "clm")
	if err != nil {
		w.Fatal(err)
	}
	if o.CLM, err = clmclient.New(clmclient.Options{Endpoint: w.URL, TLS: lifecycle}); err != nil {
		w.Fatal(err)
	}
	server, err := maestro.New(w.Context(), o)
	if err != nil {
		w.Fatal(err)
	}
	w.Background(w.Context(), server.Run)
	return func(source string) *maestroclient.Client {
		c, err := maestroclient.New(maestroclient.Options{
			HTTP: "https://" +
				o.HTTP.Addr().String(), GRPC: o.GRPC.Addr().String(), TLS: own, Source: source, Timeout: 10 * time.Second,
		})
		if err != nil {
			w.Fatal(err)
		}
		w.OnClose(c.Close)
		return c
	}
}

// cluster is the management cluster's administrator.
func (w *world) cluster() *kuberest.Config {
	w.Helper()
	config, err := planetest.Shared(w).Config.RESTConfig()
	if err != nil {
		w.Fatal(err)
	}
	config.QPS, config.Burst = 1000, 1000
	if w.admin, err = dynamic.NewForConfig(config); err != nil {
		w.Fatal(err)
	}
	return config
}

// agent starts the management cluster's agent and returns functions that stop and restart it.
func (w *world) agent(cluster *kuberest.Config) (stop, start func()) {
	w.Helper()
	kubeconfig, err := agent.Bootstrap(w.Context(), cluster, agent.BootstrapOptions{})
	if err != nil {
		w.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		w.Fatal(err)
	}
	broker, err := w.ClientTLS(consumer, "broker")
	if err != nil {
		w.Fatal(err)
	}
	dir := filepath.Join(w.TempDir(), "agent")
	var end func()
	start = func() {
		w.Helper()
		a, err := agent.New(agent.Options{
			Consumer: consumer, Kube: config, BrokerHost: w.Broker, Bus: bus.ClientOptions{Addr: w.Broker,
				TLS: broker}, DataDir: dir, Log: w.log,
		})
		if err != nil {
			w.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		end = sync.OnceFunc(func() { cancel(); <-done })
	}
	start()
	stop = func() { end() }
	w.OnClose(func() error { stop(); return nil })
	return stop, start
}

// adapter runs one of Atoll's own adapters.
func (w *world) adapter(name string, a Adapter) {
	w.Helper()
	var err error
	for file, into := range map[string]*[]byte{"config.yaml": &a.Config, "task.yaml": &a.Task} {
		if *into, err = fs.ReadFile(adapters.Files, name+"/"+file); err != nil {
			w.Fatal(err)
		}
	}
	if err := w.Run(w.Context(), a); err != nil {
		w.Fatal(err)
	}
}

// Run is the region's: the test has one of that name, too.
func (w *world) Run(ctx context.Context, a Adapter) error { return w.Region.Run(ctx, a) }

// await waits, and prints how long it took.
func (w *world) await(what string, check func() error) {
	w.Helper()
	begun := time.Now()
	if err := Await(w.Context(), check); err != nil {
		w.Fatalf("%s: %v", what, err)
	}
	w.Logf("%-60s %8.1f ms", what, float64(time.Since(begun).Microseconds())/1000)
}

func (w *world) call(method, path string, body any) (r Resource) {
	w.Helper()
	if err := w.Call(w.Context(), method, path, body, &r); err != nil {
		w.Fatal(err)
	}
	return r
}

func (w *world) reconciled(path string, generation int64) func() error {
	return func() error {
		var r Resource
		if err := w.Call(w.Context(), "GET", path, nil, &r); err != nil {
			return err
		}
		if r.Generation != generation || !r.Reconciled() {
			return fmt.Errorf("generation %d: %+v", r.Generation, r.Status.Conditions)
		}
		return nil
	}
}

func (w *world) gone(path string) func() error {
	return func() error {
		var r Resource
		if err := w.Call(w.Context(), "GET", path, nil, &r); !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("%v: %+v", err, r.Status.Conditions)
		}
		return nil
	}
}

func (w *world) object(r schema.GroupVersionResource, ns, name string) (*unstructured.Unstructured, error) {
	if ns == "" {
		return w.admin.Resource(r).Get(w.Context(), name, metav1.GetOptions{})
	}
	return w.admin.Resource(r).Namespace(ns).Get(w.Context(), name, metav1.GetOptions{})
}

// awaitValue waits until a ConfigMap has the value.
func (w *world) awaitValue(ns, name, key, want string) func() error {
	return func() error {
		o, err := w.object(configMaps, ns, name)
		if err != nil {
			return err
		}
		if got, _, _ := unstructured.NestedString(o.Object, "data", key); got != want {
			return fmt.Errorf("%s is %q", key, got)
		}
		return nil
	}
}
