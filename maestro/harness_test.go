package maestro

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"atoll.dev/api/cloudevents"
	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/mosquitto"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
	"atoll.dev/test/testsite"
)

// patience bounds every wait of the tests; nothing takes a fraction of it
// unless it is broken.
const patience = 3 * time.Minute

// site is what servers and agents of a test share: a CA, a database, a broker.
type site struct {
	t      testing.TB
	ca     *pki.CA
	dsn    string
	broker *brokerProcess
	log    *slog.Logger
}

func newSite(t testing.TB) *site { return newSiteOn(t, pgtest.DSN(t)) }

// newMosquittoSite is newSite with a broker that is not ours. maxPacket of 0 is
// MQTT's own limit.
func newMosquittoSite(t testing.TB, maxPacket int) *site {
	t.Helper()
	s := newSite(t)
	s.broker.stop()
	own := s.certificate(pki.ServiceName("broker"))
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	s.broker.foreign, err = mosquitto.Start(mosquitto.Options{
		CA: s.ca.CertPEM(), Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]}),
		Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), MaxPacket: maxPacket,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.broker.addr = s.broker.foreign.Addr
	t.Cleanup(func() {
		if err := s.broker.foreign.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newSiteOn(t testing.TB, dsn string) *site {
	t.Helper()
	ca, err := pki.OpenCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, ca: ca, dsn: dsn, log: testLog(t)}
	s.broker = &brokerProcess{site: s}
	s.broker.start()
	t.Cleanup(s.broker.stop)
	return s
}

// testLog shows warnings of a test that failed.
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

// certificate makes a key and has it signed for name.
func (s *site) certificate(name pki.Name) tls.Certificate {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		s.t.Fatal(err)
	}
	cert, err := s.ca.Sign(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), name)
	if err != nil {
		s.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		s.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
	if err != nil {
		s.t.Fatal(err)
	}
	return pair
}

func (s *site) serverTLS(service string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{s.certificate(pki.ServiceName(service))},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: s.ca.Pool(),
	}
}

func (s *site) clientTLS(name pki.Name, service string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{s.certificate(name)},
		RootCAs: s.ca.Pool(), ServerName: service}
}

// brokerProcess is the embedded broker, or Mosquitto, which can be taken away
// and come back at the same address.
type brokerProcess struct {
	site    *site
	addr    string
	end     func()
	foreign *mosquitto.Broker
}

func (b *brokerProcess) start() {
	b.site.t.Helper()
	if b.foreign != nil {
		if err := b.foreign.Start(); err != nil {
			b.site.t.Fatal(err)
		}
		return
	}
	l := testsite.ListenOn(b.site.t, b.addr)
	b.addr = l.Addr().String()
	broker, err := bus.NewBroker(bus.BrokerOptions{TLS: b.site.serverTLS("broker"),
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.site.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := broker.Serve(ctx, l); err != nil {
			b.site.t.Errorf("broker: %v", err)
		}
	}()
	b.end = func() { cancel(); <-done }
}

func (b *brokerProcess) stop() {
	if b.foreign != nil {
		b.foreign.Kill()
		return
	}
	if b.end != nil {
		b.end()
		b.end = nil
	}
}

// instance is one running server.
type instance struct {
	t      testing.TB
	site   *site
	server *Server
	url    string
	target string
	http   *http.Client
	end    func()
	reg    *prometheus.Registry
	ops    *rest.Ops
}

// start starts a server and waits until it is ready.
func (s *site) start(change ...func(*Options)) *instance {
	s.t.Helper()
	i := s.startUnready(change...)
	i.awaitReady()
	return i
}

func (s *site) startUnready(change ...func(*Options)) *instance {
	s.t.Helper()
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			s.t.Fatal(err)
		}
		return l
	}
	ops := rest.NewOps()
	o := Options{
		DSN: s.dsn, Broker: s.broker.addr, BrokerTLS: s.clientTLS(pki.ServiceName("maestro"), "broker"),
		HTTP: listen(), GRPC: listen(), HTTPTLS: s.serverTLS("maestro"), GRPCTLS: s.serverTLS("maestro"),
		MayCall: func(peer string) bool { return strings.HasPrefix(peer, "system:") || peer == "operator" },
		Logger:  s.log, Metrics: ops.Registry, Ops: ops, ShutdownGrace: 2 * time.Second,
	}
	for _, f := range change {
		f(&o)
	}
	server, err := New(context.Background(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Run(ctx); err != nil {
			s.t.Errorf("server: %v", err)
		}
	}()
	i := &instance{
		t: s.t, site: s, server: server, url: "https://" + o.HTTP.Addr().String(), target: o.GRPC.Addr().String(),
		http: s.client(pki.ServiceName("platform-api")), reg: ops.Registry, ops: ops,
	}
	var once sync.Once
	i.end = func() { once.Do(func() { cancel(); <-done }) }
	s.t.Cleanup(i.end)
	return i
}

func (s *site) client(name pki.Name) *http.Client {
	transport := &http.Transport{TLSClientConfig: s.clientTLS(name, "maestro"), MaxIdleConnsPerHost: 64}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (i *instance) awaitReady() {
	i.t.Helper()
	eventually(i.t, "the server is ready", func() error {
		if missing := i.ops.Missing(context.Background()); len(missing) > 0 {
			return fmt.Errorf("missing: %v", missing)
		}
		return nil
	})
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	testsite.Eventually(t, what, check)
}

// answer is what REST said.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) into(t testing.TB, v any) {
	t.Helper()
	if err := json.Unmarshal(a.body, v); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
}

func (i *instance) try(method, path, body string, header ...string) (answer, error) {
	req, err := http.NewRequest(method, i.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set(api.ExtensionsHeader, "true")
	for n := 0; n+1 < len(header); n += 2 {
		req.Header.Set(header[n], header[n+1])
	}
	resp, err := i.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, data}, err
}

func (i *instance) call(method, path, body string, header ...string) answer {
	i.t.Helper()
	a, err := i.try(method, path, body, header...)
	if err != nil {
		i.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

// want calls and insists on a status.
func (i *instance) want(status int, method, path, body string, header ...string) answer {
	i.t.Helper()
	a := i.call(method, path, body, header...)
	if a.status != status {
		i.t.Fatalf("%s %s: status %d instead of %d: %s", method, path, a.status, status, a.body)
	}
	return a
}

func (i *instance) consumer(name string) api.Consumer {
	i.t.Helper()
	var c api.Consumer
	i.want(http.StatusCreated, "POST", "/api/maestro/v1/consumers", `{"name":"`+name+`"}`).into(i.t, &c)
	return c
}

func (i *instance) bundle(id work.ID) api.ResourceBundle {
	i.t.Helper()
	var b api.ResourceBundle
	i.want(http.StatusOK, "GET", "/api/maestro/v1/resource-bundles/"+string(id), "").into(i.t, &b)
	return b
}

// dial returns a gRPC client with the certificate of name.
func (i *instance) dial(name pki.Name) cloudevents.CloudEventServiceClient {
	i.t.Helper()
	conn, err := grpc.NewClient(i.target, grpc.WithTransportCredentials(
		credentials.NewTLS(i.site.clientTLS(name, "maestro"))))
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { conn.Close() })
	return cloudevents.NewCloudEventServiceClient(conn)
}
