package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"log/slog"
	"math/big"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/test/testsite"
)

// patience limits every wait of a test; only a hang exceeds it.
const patience = 3 * time.Minute

var (
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
)

// certificates of a test's own authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key, pool: x509.NewCertPool()}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) config(t testing.TB, name string) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(
			time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth,
			x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der},
			PrivateKey: key}}, RootCAs: a.pool, ClientCAs: a.pool, MinVersion: tls.VersionTLS13,
	}
}

// broker is the embedded broker, which can be killed and started again.
type broker struct {
	t    testing.TB
	ca   *authority
	addr string
	stop func()
}

func startBroker(t testing.TB) *broker {
	t.Helper()
	b := &broker{t: t, ca: newAuthority(t)}
	b.start()
	t.Cleanup(func() { b.stop() })
	return b
}

func (b *broker) start() {
	b.t.Helper()
	cfg := b.ca.config(b.t, "system:broker")
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	br, err := bus.NewBroker(bus.BrokerOptions{TLS: cfg})
	if err != nil {
		b.t.Fatal(err)
	}
	l := testsite.ListenOn(b.t, b.addr)
	b.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = br.Serve(ctx, l)
	}()
	b.stop = sync.OnceFunc(func() { cancel(); <-done })
}

func (b *broker) client(t testing.TB, name string) bus.ClientOptions {
	return bus.ClientOptions{Addr: b.addr, TLS: b.ca.config(t, name)}
}

// running is an agent that serves.
type running struct {
	*Agent
	stop func()
}

func agentOptions(t testing.TB, c *cluster, b *broker, consumer work.Consumer, dir string) Options {
	level := slog.LevelWarn
	if os.Getenv("AGENT_TEST_DEBUG") != "" {
		level = slog.LevelDebug
	}
	return Options{
		Consumer: consumer, Kube: c.agent, Bus: b.client(t, string(consumer)), BrokerHost: "broker.test:" +
			string(consumer), DataDir: dir,
		Log:       slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: level})),
		ListAfter: 20 * time.Millisecond, // the test's server compares no digests
	}
}

// startAgent runs an agent, after change has changed it.
func startAgent(t testing.TB, o Options, change ...func(*Agent)) *running {
	t.Helper()
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(a)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := a.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	r := &running{Agent: a, stop: sync.OnceFunc(func() { cancel(); <-done })}
	t.Cleanup(r.stop)
	return r
}

// world is one of everything.
type world struct {
	*cluster
	ns       string
	consumer work.Consumer
	broker   *broker
	server   *server
	dir      string
	agent    *running
}

func newWorld(t *testing.T) *world {
	t.Helper()
	c, ns := sharedCluster(t)
	w := &world{cluster: c, ns: ns, consumer: work.Consumer(ns), broker: startBroker(t), dir: t.TempDir()}
	w.server = startServer(t, w.broker, w.consumer)
	w.agent = startAgent(t, agentOptions(t, c, w.broker, w.consumer, w.dir))
	t.Cleanup(func() {
		if t.Failed() {
			w.logFailure(t)
		}
	})
	return w
}

func (w *world) restart(t *testing.T) {
	t.Helper()
	w.agent.stop()
	w.agent = startAgent(t, agentOptions(t, w.cluster, w.broker, w.consumer, w.dir))
}

func (w *world) amw(id work.ID) string {
	return hubHash("broker.test:"+string(w.consumer)) + "-" + string(id)
}

func configMap(ns, name string, data ...string) json.RawMessage {
	m := map[string]string{}
	for i := 0; i+1 < len(data); i += 2 {
		m[data[i]] = data[i+1]
	}
	return raw(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name,
		"namespace": ns}, "data": m})
}

func raw(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func manifests(m ...json.RawMessage) work.Bundle { return work.Bundle{Manifests: m} }

func dataOf(u *unstructured.Unstructured, key string) string {
	v, _, _ := unstructured.NestedString(u.Object, "data", key)
	return v
}
