package maestro

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/pki"
)

// foreignCA is a CA that is not the region's.
type foreignCA struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newForeignCA(t *testing.T) *foreignCA {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "another CA"}, NotBefore: time.Now().Add(
			-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &foreignCA{t, cert, key}
}

func (ca *foreignCA) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(ca.cert)
	return p
}

func (ca *foreignCA) client(user string, groups ...string) tls.Certificate {
	ca.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		ca.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: user, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{
			x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		ca.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// dialWith dials with any certificate, or none.
func (i *instance) dialWith(target string, certs ...tls.Certificate) cloudevents.CloudEventServiceClient {
	i.t.Helper()
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: i.site.CA.Pool(), ServerName: "maestro",
		Certificates: certs}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { conn.Close() })
	return cloudevents.NewCloudEventServiceClient(conn)
}

// attempt publishes a deletion of nothing as a source: OK when it is allowed.
func attempt(ctx context.Context, t *testing.T, c cloudevents.CloudEventServiceClient, name string) error {
	src := &source{t: t, client: c, name: name}
	_, err := c.Publish(ctx, &cloudevents.PublishRequest{Event: src.event(work.SpecDelete, "mc1", "nothing", 0, nil)})
	return err
}

// opened subscribes and returns the error of that; the stream is ended unless keep.
func opened(ctx context.Context, c cloudevents.CloudEventServiceClient, req *cloudevents.SubscriptionRequest) (
	func() error, error) {
	stream, err := c.Subscribe(ctx, req)
	if err != nil {
		return nil, err
	}
	header, err := stream.Header()
	if err != nil {
		return nil, err
	}
	if len(header.Get("subscription-id")) == 0 {
		_, err := stream.Recv()
		return nil, err
	}
	return func() error {
		for {
			if _, err := stream.Recv(); err != nil {
				return err
			}
		}
	}, nil
}

func TestI10RulesLetOthersIn(t *testing.T) {
	t.Parallel()
	site, ca := newSite(t), newForeignCA(t)
	path := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) {
		t.Helper()
		next := path + ".next" // the server, which reads the file all the time, reads the old rules or the new ones
		if err := errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, path)); err != nil {
			t.Fatal(err)
		}
	}
	write(`
rules:
- users: [alice]
  sources: [fleet]
  verbs: [pub]
- groups: [watchers]
  sources: [fleet]
  clusters: [mc1]
  verbs: [sub]
`)
	m := site.start(withAgents(site), func(o *Options) {
		config := site.ServerTLS("maestro")
		config.ClientCAs = ca.pool()
		o.GRPCTLS, o.ForeignGRPC, o.AgentsTLS, o.ForeignAgents = config, true, config, true
		o.RulesFile, o.Recheck = path, 50*time.Millisecond
	})
	alice, watcher := m.dialWith(m.target, ca.client("alice", "x")),
		m.dialWith(m.target, ca.client("bob", "y", "watchers"))
	service := m.dialWith(m.target, ca.client("system:platform-api"))
	agents := m.dialWith(m.agentsTarget(), ca.client("mc2"))
	watcherAgents := m.dialWith(m.agentsTarget(), ca.client("bob", "watchers"))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	sub := func(c cloudevents.CloudEventServiceClient, source, cluster string) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		_, err := opened(ctx, c, &cloudevents.SubscriptionRequest{Source: source, ClusterName: cluster,
			DataType: work.DataType})
		return err
	}
	for what, c := range map[string]struct {
		err  error
		code string
	}{
		"alice publishes":                       {attempt(ctx, t, alice, "fleet"), "OK"},
		"alice publishes as another":            {attempt(ctx, t, alice, "other"), "PermissionDenied"},
		"alice subscribes":                      {sub(alice, "fleet", ""), "PermissionDenied"},
		"a watcher subscribes":                  {sub(watcher, "fleet", ""), "OK"},
		"a watcher publishes":                   {attempt(ctx, t, watcher, "fleet"), "PermissionDenied"},
		"a watcher reads a cluster":             {sub(watcherAgents, "", "mc1"), "OK"},
		"a watcher reads another cluster":       {sub(watcherAgents, "", "mc2"), "PermissionDenied"},
		"another CA's service is none of ours":  {attempt(ctx, t, service, "fleet"), "PermissionDenied"},
		"another CA's cluster is none of ours":  {sub(agents, "", "mc2"), "PermissionDenied"},
		"without a certificate nobody comes in": {attempt(ctx, t, m.dialWith(m.target), "fleet"), "Unavailable"},
	} {
		if !isCode(c.err, c.code) && !(c.code == "OK" && c.err == nil) {
			t.Errorf("%s: %v instead of %s", what, c.err, c.code)
		}
	}
	// The rules change: the next call is judged by the new ones, and a stream
	// that they do not allow ends.
	ended, err := opened(ctx, watcher, &cloudevents.SubscriptionRequest{Source: "fleet"})
	if err != nil {
		t.Fatal(err)
	}
	write("rules:\n- users: [alice]\n  sources: [other]\n  verbs: [pub]\n")
	if err := ended(); !isCode(err, "PermissionDenied") {
		t.Errorf("the stream: %v", err)
	}
	if err := attempt(ctx, t, alice, "other"); err != nil {
		t.Error(err)
	}
	if err := attempt(ctx, t, alice, "fleet"); !isCode(err, "PermissionDenied") {
		t.Error(err)
	}
}

// A service that may call over REST acts as a source only if it may call over
// gRPC, too.
func TestI10SourcesHaveATableOfTheirOwn(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start(func(o *Options) {
		o.MayCallGRPC = func(peer string) bool { return peer == "system:adapter" }
	})
	m.want(http.StatusOK, "GET", "/api/maestro/v1/consumers", "")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := attempt(ctx, t, m.dial("system:adapter"), "fleet"); err != nil {
		t.Error(err)
	}
	for _, name := range []pki.Name{"system:platform-api", "system:clm", "system:operator"} {
		if err := attempt(ctx, t, m.dial(name), "fleet"); !isCode(err, "PermissionDenied") {
			t.Errorf("%s publishes: %v", name, err)
		}
		_, err := opened(ctx, m.dial(name), &cloudevents.SubscriptionRequest{Source: "fleet"})
		if !isCode(err, "PermissionDenied") {
			t.Errorf("%s subscribes: %v", name, err)
		}
	}
}

func TestPlainListenersStayOnLoopback(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	open, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	local := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	o := Options{DSN: site.dsn, HTTP: local(), GRPC: local()}
	o.Plain.Agents = open
	if _, err := New(t.Context(), o); err == nil || !strings.Contains(err.Error(), "not on loopback") {
		t.Errorf("a plain listener for all: %v", err)
	}
	var plainHTTP, plainGRPC, plainAgents net.Listener
	m := site.start(func(o *Options) {
		plainHTTP, plainGRPC, plainAgents = local(), local(), local()
		o.Plain.HTTP, o.Plain.GRPC, o.Plain.Agents = plainHTTP, plainGRPC, plainAgents
	})
	resp, err := http.Post("http://"+plainHTTP.Addr().String()+"/api/maestro/v1/consumers", "application/json",
		bytes.NewReader([]byte(`{"name":"mc1"}`)))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Errorf("status %d", resp.StatusCode)
	}
	dial := func(l net.Listener) cloudevents.CloudEventServiceClient {
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return cloudevents.NewCloudEventServiceClient(conn)
	}
	src := &source{t: t, client: dial(plainGRPC), name: testSource}
	src.create("mc1", "w1", 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := dial(plainAgents).Subscribe(ctx, &cloudevents.SubscriptionRequest{ClusterName: "mc1",
		DataType: work.DataType})
	if err != nil {
		t.Fatal(err)
	}
	for kind := ""; kind != work.SpecCreate; { // a server that just got its broker asks for statuses, too
		e, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		kind = e.GetType()
	}
	// The other listeners are as closed as before.
	if _, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: site.CA.Pool(),
		ServerName: "maestro"}}}).Get(m.url + "/api/maestro/v1/consumers"); err == nil {
		t.Error("a caller without a certificate was answered")
	}
}
