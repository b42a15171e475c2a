package rosa_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"sync"
	"testing"
	"time"

	"atoll.dev/access"
	"atoll.dev/bus"
	"atoll.dev/client/maestroclient"
	"atoll.dev/internal/pgtest"
	"atoll.dev/maestro"
	"atoll.dev/pki"
)

// identity is a certificate of a region's CA.
type identity struct {
	cert  tls.Certificate
	roots *x509.CertPool
}

func identityOf(t testing.TB, ca *pki.CA, name pki.Name) identity {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: string(name)}}, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.Sign(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}), name)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(cert)
	return identity{tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key}, ca.Pool()}
}

func (id identity) server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{id.cert},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: id.roots,
	}
}

func (id identity) client(service string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{id.cert}, RootCAs: id.roots, ServerName: service,
	}
}

// behind has the services behind the front: a Maestro with its broker and database,
// which a test may stop and start again.
type behind struct {
	t      testing.TB
	ca     *pki.CA
	dsn    string
	mqtt   string // address of the broker, once it has one
	web    string // and of Maestro
	rpc    string
	client *maestroclient.Client

	stopBroker, stopMaestro func()
}

func startMaestro(t testing.TB) *maestroclient.Client { return startBehind(t, pgtest.DSN(t)).client }

func startBehind(t testing.TB, dsn string) *behind {
	t.Helper()
	ca, err := pki.OpenCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b := &behind{t: t, ca: ca, dsn: dsn, mqtt: "127.0.0.1:0", web: "127.0.0.1:0", rpc: "127.0.0.1:0"}
	b.startBroker()
	b.startMaestro()
	b.client, err = maestroclient.New(maestroclient.Options{
		HTTP: "https://" + b.web, GRPC: b.rpc,
		TLS: identityOf(t, ca, pki.ServiceName("platform")).client("maestro"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.client.Close() })
	waitReady(t, b.client)
	return b
}

// listen listens at an address; a later call gets the same address again.
func (b *behind) listen(addr *string) net.Listener {
	b.t.Helper()
	l, err := net.Listen("tcp", *addr)
	if err != nil {
		b.t.Fatal(err)
	}
	*addr = l.Addr().String()
	return l
}

// run runs a service until the test ends or stop is called.
func (b *behind) run(name string, service func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	running := make(chan error, 1)
	go func() { running <- service(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-running; err != nil {
			b.t.Errorf("stopping %s: %v", name, err)
		}
	})
	b.t.Cleanup(stop)
	return stop
}

func (b *behind) startBroker() {
	b.t.Helper()
	broker, err := bus.NewBroker(bus.BrokerOptions{TLS: identityOf(b.t, b.ca, pki.ServiceName("broker")).server()})
	if err != nil {
		b.t.Fatal(err)
	}
	l := b.listen(&b.mqtt)
	b.stopBroker = b.run("broker", func(ctx context.Context) error { return broker.Serve(ctx, l) })
}

func (b *behind) startMaestro() {
	b.t.Helper()
	id := identityOf(b.t, b.ca, pki.ServiceName("maestro"))
	server, err := maestro.New(b.t.Context(), maestro.Options{
		DSN:    b.dsn,
		Broker: b.mqtt, BrokerTLS: id.client("broker"),
		HTTP: b.listen(&b.web), HTTPTLS: id.server(), GRPC: b.listen(&b.rpc), GRPCTLS: id.server(),
		MayCall: func(peer string) bool { return access.MayCall(access.MaestroHTTP, pki.Name(peer)) },
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.stopMaestro = b.run("maestro", server.Run)
}

// waitReady waits until Maestro accepts works.
func waitReady(t testing.TB, m *maestroclient.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := m.Ready(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("Maestro is not ready: %v", err)
		case <-tick.C:
		}
	}
}
