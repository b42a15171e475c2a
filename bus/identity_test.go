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
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"atoll.dev/api/work"
	"atoll.dev/internal/quick"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
)

var quiet = slog.New(slog.DiscardHandler)

// estate is a region's CA that is served, and a broker that has its identity
// from there, as `atoll broker` has.
type estate struct {
	*testBroker
	region *pki.CA
	url    string
	halt   func() // stops the signing service
	dir    string // of the broker's identity
	rest   func() // ends the broker's identity
}

func newTestRegion(t *testing.T, validity time.Duration) *estate {
	t.Helper()
	ca, err := pki.OpenCA(filepath.Join(t.TempDir(), "ca"))
	if err != nil {
		t.Fatal(err)
	}
	ca.Validity = validity
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &estate{region: ca, url: "https://" + l.Addr().String(), dir: t.TempDir()}
	e.halt = background(t, func(ctx context.Context) error {
		s := pki.NewServer(ca)
		return (&rest.Server{Name: "pki", Handler: s.Handler(quiet), TLS: s.TLS(), Log: quiet}).Run(ctx, l)
	})
	e.testBroker = &testBroker{t: t, addr: "127.0.0.1:0"}
	e.open(t)
	t.Cleanup(func() { e.close() })
	return e
}

// open starts the broker; for the first time or again.
func (e *estate) open(t *testing.T) {
	t.Helper()
	id := e.identity(t, "system:broker", e.dir)
	e.opts.TLS = id.ServerTLS(pki.CertificateRequired)
	e.rest = background(t, id.Run)
	for id.Check(t.Context()) != nil {
		<-time.After(5 * time.Millisecond)
	}
	e.testBroker.start()
}

func (e *estate) close() {
	e.testBroker.stop()
	e.rest()
}

// background runs f until the function that it returns is called.
func background(t *testing.T, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// identity joins as name, unless dir has joined.
func (e *estate) identity(t *testing.T, name pki.Name, dir string) *pki.Identity {
	t.Helper()
	o := pki.IdentityOptions{Dir: dir, Name: name, URL: e.url, CAFile: e.region.CertFile(), Logger: quiet}
	if !pki.Enrolled(filepath.Dir(e.region.CertFile()), dir, name) {
		var err error
		if o.Token, err = e.region.CreateToken(name, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	id, err := pki.OpenIdentity(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// attempt connects with a configuration; the error is the broker's refusal.
func (e *estate) attempt(t *testing.T, config *tls.Config, clientID string) (*rawClient, error) {
	t.Helper()
	c, ack, err := e.raw(t, config, &packets.Connect{ClientID: clientID, CleanStart: true})
	if err == nil && ack.ReasonCode >= 0x80 {
		err = fmt.Errorf("refused: 0x%02x", ack.ReasonCode)
	}
	return c, err
}

// The broker disconnects a revoked agent, and refuses it also after a restart of broker and CA.
func TestI7ARevokedAgentIsDisconnected(t *testing.T) {
	e := newTestRegion(t, 0)
	agent, other := e.identity(t, "c1", t.TempDir()), e.identity(t, "c2", t.TempDir())
	c, err := e.attempt(t, agent.ClientTLS("broker"), agentClientID("c1"))
	if err != nil {
		t.Fatal(err)
	}
	c.conn.SetDeadline(time.Now().Add(hangLimit))
	lost := make(chan error, 10)
	o := ClientOptions{Addr: e.addr, TLS: other.ClientTLS("broker"), ClientID: agentClientID("c2")}
	up := make(chan struct{}, 10)
	o.OnConnected = func(ctx context.Context) {
		up <- struct{}{}
		context.AfterFunc(ctx, func() { lost <- ctx.Err() })
	}
	client := NewClient(o)
	stop := background(t, client.Run)
	receive(t, up)

	begun := time.Now()
	if _, err := e.region.Revoke("c1", pki.Command{Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	if p := c.next(); p != nil {
		t.Errorf("the revoked agent received %+v", p)
	}
	took := time.Since(begun)
	if t.Logf("the broker closed the connection after %s", took); took > hangLimit/2 { // the limit of the read is longer
		t.Error("the broker does not close the connection of a revoked agent")
	}
	if _, err := e.attempt(t, agent.ClientTLS("broker"), agentClientID("c1")); err == nil {
		t.Error("it came back")
	}
	if err := client.Publish(t.Context(), agentTopic("c2"), testEvent("1")); err != nil || len(lost) > 0 {
		t.Errorf("another was cut off, too: %v", err)
	}
	stop()

	e.halt() // the CA is away, and the broker starts again
	e.close()
	e.open(t)
	if _, err := e.attempt(t, agent.ClientTLS("broker"), agentClientID("c1")); err == nil {
		t.Error("after a restart it came back")
	}
	if _, err := e.attempt(t, other.ClientTLS("broker"), agentClientID("c2")); err != nil {
		t.Errorf("after a restart another is refused: %v", err)
	}
}

// The broker refuses certificates that do not prove an identity of the region.
func TestI7CertificatesWithoutAnIdentityAreRefused(t *testing.T) {
	e := newTestRegion(t, 0)
	agent := e.identity(t, "c1", t.TempDir())
	mine, err := agent.ClientTLS("").GetClientCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	forge := func(parent *x509.Certificate, signer any, chain ...[]byte) tls.Certificate {
		tmpl := &x509.Certificate{
			SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "c2"}, NotBefore: time.Now().Add(
				-time.Hour), NotAfter: time.Now().Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature |
				x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
		}
		if parent == nil {
			parent = tmpl
		}
		der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: append([][]byte{der}, chain...), PrivateKey: key}
	}
	elsewhere := newTestRegion(t, 0).identity(t, "c1", t.TempDir())
	foreign, err := elsewhere.ClientTLS("").GetClientCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	short, err := pki.OpenCA(filepath.Dir(e.region.CertFile()))
	if err != nil {
		t.Fatal(err)
	}
	short.Validity = -time.Second // over, but within the backdating
	expired := tls.Certificate{PrivateKey: key, Certificate: sign(t, short, key, "c1")}
	for name, c := range map[string]struct {
		cert tls.Certificate
		id   string
	}{
		"self-signed": {forge(nil, key), agentClientID("c2")},
		"signed by an agent": {forge(mine.Leaf, mine.PrivateKey, mine.Certificate[0]),
			agentClientID("c2")},
		"of another region":               {*foreign, agentClientID("c1")},
		"expired":                         {expired, agentClientID("c1")},
		"an agent's, with another's name": {*mine, agentClientID("c2")},
		"an agent's, as a service":        {*mine, "maestro"},
		"an agent's, with its key's stranger": {tls.Certificate{Certificate: mine.Certificate, PrivateKey: key},
			agentClientID("c1")},
		"a service's, as an agent":            {cert(t, e.region, "system:maestro"), agentClientID("maestro")},
		"a service's, as another's agent":     {cert(t, e.region, "system:maestro"), agentClientID("c1")},
		"a service that has no business here": {cert(t, e.region, "system:pki"), "pki"},
		"a service called like a consumer":    {cert(t, e.region, "system:c1"), agentClientID("c1")},
		"a consumer called like a service":    {cert(t, e.region, "maestro"), "maestro"},
		"a consumer called like a client id":  {cert(t, e.region, "c1-agent-client"), agentClientID("c1")},
	} {
		config := agent.ClientTLS("broker")
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &c.cert,
				nil
		}
		if _, err := e.attempt(t, config, c.id); err == nil {
			t.Errorf("%s: let in as %q", name, c.id)
		}
	}
	// Names that look like others' are identities of their own.
	for _, name := range []pki.Name{"maestro", "c1-agent-client", "system", "c1"} {
		config := agent.ClientTLS("broker")
		pair := cert(t, e.region, name)
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		c, err := e.attempt(t, config, agentClientID(work.Consumer(name)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if code := c.subscribe(sourceTopic(work.Consumer(name))); code >= 0x80 {
			t.Errorf("%s may not read its own topic", name)
		}
		if name != "c1" {
			if code := c.subscribe(sourceTopic("c1")); code < 0x80 {
				t.Errorf("%s reads the topic of c1", name)
			}
		}
	}
}

func cert(t *testing.T, ca *pki.CA, name pki.Name) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{PrivateKey: key, Certificate: sign(t, ca, key, name)}
}

// sign returns the DER forms of a certificate and of its issuing CA.
func sign(t *testing.T, ca *pki.CA, key *ecdsa.PrivateKey, name pki.Name) (chain [][]byte) {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	data, err := ca.Sign(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), name)
	if err != nil {
		t.Fatal(err)
	}
	for b, rest := pem.Decode(data); b != nil; b, rest = pem.Decode(rest) {
		chain = append(chain, b.Bytes)
	}
	return chain
}

// No event is lost while all certificates expire and are renewed several times: clients
// connect again with the new certificate.
func TestI6AChangeOfCertificatesLosesNoEvent(t *testing.T) {
	quick.LeavesOut(t, "waits for certificates that expire")
	e := newTestRegion(t, 2*time.Second)
	x := newExchange(t, e)
	first := x.agent.Certificate().SerialNumber

	var worst time.Duration
	renewed := func() bool { return x.agent.Certificate().SerialNumber.Cmp(first) != 0 && len(x.connects) > 0 }
	start := time.Now()
	for time.Since(start) < 6*time.Second || !renewed() && time.Since(start) < hangLimit {
		worst = max(worst, x.deliver(t))
	}
	if !renewed() {
		t.Errorf("no certificate changed in use: %d connections made again", len(x.connects))
	}
	t.Logf("%d connections made again; the longest pause was %s", len(x.connects), worst)
}
