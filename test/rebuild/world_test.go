package rebuild

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/adapter"
	"atoll.dev/adapter/works"
	"atoll.dev/adapters"
	"atoll.dev/agent"
	"atoll.dev/bus"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/clm"
	"atoll.dev/internal/pgtest"
	"atoll.dev/maestro"
	"atoll.dev/pki"
	"atoll.dev/plane/planetest"
	"atoll.dev/sentinel"
	"atoll.dev/store"
)

func TestMain(m *testing.M) { os.Exit(planetest.Main(m)) }

const (
	patience = 3 * time.Minute
	mc1, mc2 = "mc1", "mc2" // the management clusters
	entities = `
entities:
- {kind: Cluster, plural: clusters, required_adapters: [cl-maestro]}
- {kind: ManagementCluster, plural: managementclusters}
`
)

// world is a region with two management clusters. Its HTTP ports are plain.
type world struct {
	*testing.T
	ca     *pki.CA
	broker string
	log    *slog.Logger

	clmURL      string
	clm         *clmclient.Client
	httpA, grpc string // of Maestro
	maestro     *maestroclient.Client

	stopMaestro func()
	clusters    map[string]*managed
}

// managed is a management cluster.
type managed struct {
	kube      *rest.Config
	admin     dynamic.Interface
	store     string // of the agent
	stopAgent func()
}

func newWorld(t *testing.T) *world {
	ca, err := pki.OpenCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, ca: ca, log: testLog(t), httpA: "127.0.0.1:0", grpc: "127.0.0.1:0",
		clusters: map[string]*managed{}}
	w.startBroker()
	w.startMaestro()
	w.startCLM()
	w.startAdapter()
	for _, name := range []string{mc1, mc2} {
		c := &managed{store: filepath.Join(t.TempDir(), "agent")}
		if c.kube, err = planetest.Start(t).Config.RESTConfig(); err != nil {
			t.Fatal(err)
		}
		if c.admin, err = dynamic.NewForConfig(c.kube); err != nil {
			t.Fatal(err)
		}
		w.clusters[name] = c
		w.startAgent(name)
	}
	return w
}

func testLog(t testing.TB) *slog.Logger {
	var mu sync.Mutex
	var b bytes.Buffer
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		if t.Failed() {
			t.Logf("log:\n%s", b.String())
		}
	})
	return slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return b.Write(p)
	}), nil))
}

type writer func([]byte) (int, error)

func (f writer) Write(p []byte) (int, error) { return f(p) }

func (w *world) pair(name pki.Name) tls.Certificate {
	w.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		w.Fatal(err)
	}
	cert, err := w.ca.Sign(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}), name)
	if err != nil {
		w.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		w.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err != nil {
		w.Fatal(err)
	}
	return pair
}

// atBroker is what a part connects to the broker with.
func (w *world) atBroker(name pki.Name) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{w.pair(name)},
		RootCAs: w.ca.Pool(), ServerName: "broker"}
}

// listen takes an address, which stays the same from then on.
func (w *world) listen(addr *string) net.Listener {
	w.Helper()
	var l net.Listener
	w.eventually("the address "+*addr+" is free", func() (err error) {
		l, err = net.Listen("tcp", *addr)
		return err
	})
	*addr = l.Addr().String()
	return l
}

// run runs a part until the function that it returns, or the test's end.
func (w *world) run(what string, part func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := part(ctx); err != nil && ctx.Err() == nil {
			w.Errorf("%s ended: %v", what, err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	w.Cleanup(stop)
	return stop
}

func (w *world) startBroker() {
	w.Helper()
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{w.pair(pki.ServiceName("broker"))},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: w.ca.Pool(),
	}
	broker, err := bus.NewBroker(bus.BrokerOptions{TLS: config, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.Fatal(err)
	}
	w.broker = "127.0.0.1:0"
	l := w.listen(&w.broker)
	w.run("the broker", func(ctx context.Context) error { return broker.Serve(ctx, l) })
}

// startMaestro starts a Maestro with an empty database.
func (w *world) startMaestro() {
	w.Helper()
	o := maestro.Options{DSN: pgtest.DSN(w.T), Broker: w.broker, BrokerTLS: w.atBroker(pki.ServiceName("maestro")),
		Logger: w.log, ShutdownGrace: time.Second}
	o.Plain.HTTP, o.Plain.GRPC = w.listen(&w.httpA), w.listen(&w.grpc)
	server, err := maestro.New(w.Context(), o)
	if err != nil {
		w.Fatal(err)
	}
	w.stopMaestro = w.run("Maestro", server.Run)
	w.maestro = w.dial("operator")
	w.eventually("Maestro is ready", func() error { return w.maestro.Ready(w.Context()) })
}

// dial returns a client of Maestro that orders works for a source.
func (w *world) dial(source string) *maestroclient.Client {
	w.Helper()
	c, err := maestroclient.New(maestroclient.Options{HTTP: "http://" + w.httpA, GRPC: w.grpc, Source: source,
		Timeout: 10 * time.Second})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = c.Close() })
	return c
}

// startCLM starts the lifecycle manager with its sentinel.
func (w *world) startCLM() {
	w.Helper()
	registry, err := clm.ParseRegistry([]byte(entities))
	if err != nil {
		w.Fatal(err)
	}
	db, err := clm.Open(w.Context(), clm.DatabaseOptions{DSN: pgtest.DSN(w.T), Registry: registry, Logger: w.log})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(db.Close)
	addr := "127.0.0.1:0"
	server, err := clm.New(clm.Options{Database: db, Plain: w.listen(&addr),
		Identify: (&clm.Identity{Open: true}).Identify, Logger: w.log})
	if err != nil {
		w.Fatal(err)
	}
	w.run("CLM", server.Run)
	o := sentinel.Options{
		Store: db.Store, Feed: db.Feed, Requests: clm.RequestKind, Name: "s1", Logger: w.log,
		Bus: bus.ClientOptions{Addr: w.broker, TLS: w.atBroker(pki.ServiceName("clm"))},
	}
	for _, e := range registry.Entities() {
		if len(e.RequiredAdapters) > 0 {
			o.Kinds = append(o.Kinds, sentinel.Kind{Kind: store.Kind(e.Kind), Plural: e.Plural})
		}
	}
	s, err := sentinel.New(w.Context(), o)
	if err != nil {
		w.Fatal(err)
	}
	w.run("the sentinel", s.Run)
	w.clmURL = "http://" + addr
	if w.clm, err = clmclient.New(clmclient.Options{Endpoint: w.clmURL}); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(w.clm.Close)
}

// startAdapter starts cl-maestro as it is.
func (w *world) startAdapter() {
	w.Helper()
	read := func(name string) []byte {
		data, err := fs.ReadFile(adapters.Files, "cl-maestro/"+name)
		if err != nil {
			w.Fatal(err)
		}
		return data
	}
	config, err := adapter.ParseConfig("config.yaml", read("config.yaml"), nil)
	if err != nil {
		w.Fatal(err)
	}
	task, err := adapter.ParseTask("task.yaml", read("task.yaml"), os.ReadFile)
	if err != nil {
		w.Fatal(err)
	}
	config.Clients.API.BaseURL = w.clmURL
	transport := works.New(works.Options{Client: w.dial(config.Clients.Maestro.SourceID), Log: w.log,
		Clusters: func(context.Context) ([]string, error) { return []string{mc1, mc2}, nil }})
	engine, err := adapter.New(adapter.Options{Config: config, Task: task, Transport: transport,
		API: http.DefaultClient, Log: w.log})
	if err != nil {
		w.Fatal(err)
	}
	worker := adapter.NewWorker(adapter.WorkerOptions{
		Name: config.Adapter.Name, Topic: config.Clients.Broker.Topic, Engine: engine, Watcher: transport, Log: w.log,
		Bus: bus.ClientOptions{Addr: w.broker, TLS: w.atBroker(pki.ServiceName("adapter"))},
	})
	w.run("the adapter", worker.Run)
	w.Cleanup(http.DefaultClient.CloseIdleConnections)
}

// startAgent starts a management cluster's agent, with what it stored.
func (w *world) startAgent(name string) {
	w.Helper()
	c := w.clusters[name]
	kubeconfig, err := agent.Bootstrap(w.Context(), c.kube, agent.BootstrapOptions{})
	if err != nil {
		w.Fatal(err)
	}
	kube, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		w.Fatal(err)
	}
	a, err := agent.New(agent.Options{
		Consumer: name, Kube: kube, BrokerHost: "broker", DataDir: c.store, Log: w.log, SeenEvery: 200 * time.Millisecond, CompareEvery: time.Second,
		Bus: bus.ClientOptions{Addr: w.broker, TLS: w.atBroker(pki.Name(name))},
	})
	if err != nil {
		w.Fatal(err)
	}
	c.stopAgent = w.run("the agent of "+name, a.Run)
}

func (w *world) eventually(what string, check func() error) {
	w.Helper()
	limit := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-limit:
			w.Fatalf("in vain: %s: %v", what, err)
		case <-tick.C:
		}
	}
}

var errNotYet = fmt.Errorf("not yet")
