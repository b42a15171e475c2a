package bus

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/internal/freeport"
	"atoll.dev/internal/mosquitto"
)

// authority signs test certificates.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, NotBefore: time.Now().Add(
			-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{key, cert}
}

func (a *authority) certificate(t testing.TB, name string) tls.Certificate {
	return a.certificateUntil(t, name, time.Now().Add(time.Hour))
}

func (a *authority) certificateUntil(t testing.TB, name string, expires time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{
			CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: expires,
		DNSNames: []string{"broker"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{
			x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

func (a *authority) client(t testing.TB, name string) *tls.Config {
	return &tls.Config{RootCAs: a.pool(), ServerName: "broker", Certificates: []tls.Certificate{a.certificate(t, name)}}
}

// testBroker is a broker on a port of its own that can be stopped and started.
type testBroker struct {
	t    testing.TB
	ca   *authority
	addr string
	opts BrokerOptions
	stop func()

	foreign bool // Mosquitto
	kept    *mosquitto.Broker
}

// eachBroker runs a test with our broker and with Mosquitto.
func eachBroker(t *testing.T, opts BrokerOptions, test func(*testing.T, *testBroker)) {
	t.Run("embedded", func(t *testing.T) { test(t, startBroker(t, opts)) })
	t.Run("mosquitto", func(t *testing.T) {
		b := &testBroker{t: t, ca: newAuthority(t), opts: opts, foreign: true}
		b.start()
		t.Cleanup(func() {
			b.stop()
			if err := b.kept.Close(); err != nil {
				t.Error(err)
			}
		})
		test(t, b)
	})
}

// startForeign starts Mosquitto, or starts it again.
func (b *testBroker) startForeign() {
	b.t.Helper()
	b.stop = sync.OnceFunc(func() { b.kept.Kill() })
	if b.kept != nil {
		if err := b.kept.Start(); err != nil {
			b.t.Fatal(err)
		}
		return
	}
	own := b.ca.certificate(b.t, "system:broker")
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		b.t.Fatal(err)
	}
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	b.kept, err = mosquitto.Start(mosquitto.Options{
		CA: block("CERTIFICATE", b.ca.cert.Raw), Cert: block("CERTIFICATE", own.Certificate[0]), Key: block(
			"PRIVATE KEY", key), MaxPacket: int(b.opts.MaxPacket),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.addr = b.kept.Addr
}

func startBroker(t testing.TB, opts BrokerOptions) *testBroker {
	t.Helper()
	b := &testBroker{t: t, ca: newAuthority(t), addr: "127.0.0.1:0", opts: opts}
	b.opts.TLS = &tls.Config{
		Certificates: []tls.Certificate{b.ca.certificate(
			t, "system:broker")}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: b.ca.pool(),
	}
	b.start()
	t.Cleanup(func() { b.stop() })
	return b
}

// listen listens on an address, or on a free port of package freeport when the address ends in :0. It retries for ten
// seconds while a stopped broker still holds the address.
func listen(t testing.TB, address string) (l net.Listener) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	listen := func() (net.Listener, error) { return net.Listen("tcp", address) }
	if strings.HasSuffix(address, ":0") {
		listen = freeport.Listen
	}
	var err error
	for range 1000 {
		if l, err = listen(); err == nil {
			return l
		}
		<-tick.C
	}
	t.Fatal(err)
	return nil
}

func (b *testBroker) start() {
	b.t.Helper()
	if b.foreign {
		b.startForeign()
		return
	}
	l := listen(b.t, b.addr)
	b.addr = l.Addr().String()
	broker, err := NewBroker(b.opts)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- broker.Serve(ctx, l) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
	})
}

// connect runs a client until the test ends and returns it connected.
func (b *testBroker) connect(name string, o ClientOptions) *Client {
	b.t.Helper()
	o.Addr, o.TLS = b.addr, b.ca.client(b.t, name)
	if o.ClientID == "" {
		o.ClientID = agentClientID(work.Consumer(name))
	}
	up := make(chan struct{}, 100)
	then := o.OnConnected
	o.OnConnected = func(ctx context.Context) {
		if then != nil {
			then(ctx)
		}
		up <- struct{}{}
	}
	c := NewClient(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	b.t.Cleanup(func() { cancel(); <-done })
	receive(b.t, up)
	return c
}

// hangLimit is how long a test waits for an event. Only a hang exceeds it, on a machine under any load.
const hangLimit = 3 * time.Minute

// receive returns the next value of a channel and fails the test if none arrives.
func receive[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(hangLimit):
		t.Fatal("no value within the time limit")
		panic("unreachable")
	}
}

func testEvent(id string) Event {
	return Event{ID: id, Source: "maestro", Type: "test.type", DataContentType: "application/json",
		Data: []byte(`{"a":1}`), Extensions: map[string]string{"clustername": "c1", "originalsource": ""}}
}

func agentTopic(consumer work.Consumer) string {
	return Topic{Source: "maestro", Consumer: consumer, Kind: AgentEvents}.String()
}

func sourceTopic(consumer work.Consumer) string {
	return Topic{Source: "maestro", Consumer: consumer, Kind: SourceEvents}.String()
}
