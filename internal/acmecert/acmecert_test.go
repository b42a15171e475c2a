package acmecert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/crypto/acme/autocert"
)

const (
	hangLimit = 2 * time.Minute
	name      = "api.eu-1.example.com"
)

// acmeServer is Pebble, the ACME server of Let's Encrypt for tests, in this process. It sends its challenges to the
// listener gateway, whatever the name.
type acmeServer struct {
	directory, caFile string
	roots             *x509.CertPool // of the certificates that it issues
	gateway           net.Listener
}

func startACME(t *testing.T, validity time.Duration) *acmeServer {
	t.Helper()
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	gateway, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gateway.Close() })
	names, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	resolver := &dns.Server{Listener: names, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		answer := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			answer.Answer = append(answer.Answer, &dns.A{A: net.IPv4(127, 0, 0, 1),
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}})
		}
		_ = w.WriteMsg(answer)
	})}
	go func() { _ = resolver.ActivateAndServe() }()
	t.Cleanup(func() { names.Close() })
	quiet := log.New(io.Discard, "", 0)
	store := db.NewMemoryStore()
	authority := ca.New(quiet, store, "", "ecdsa", 0, 1, map[string]ca.Profile{
		"default": {ValidityPeriod: uint64(validity.Seconds())}})
	validation := va.New(quiet, gateway.Addr().(*net.TCPAddr).Port, gateway.Addr().(*net.TCPAddr).Port, false,
		names.Addr().String(), store)
	front := wfe.New(quiet, store, validation, authority, []string{"pebble.example.com"}, false, false, 1, 1)
	server := httptest.NewTLSServer(front.Handler())
	t.Cleanup(server.Close)
	s := &acmeServer{directory: server.URL + wfe.DirectoryPath, caFile: filepath.Join(t.TempDir(), "acme-ca.pem"),
		roots: x509.NewCertPool(), gateway: gateway}
	s.roots.AppendCertsFromPEM(authority.GetRootCert(0).PEM())
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(s.caFile, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// serve serves with the certificates at the gateway, beside the certificate of a httptest server, until the test ends.
func (s *acmeServer) serve(t *testing.T, c *Certificates) {
	own := httptest.NewUnstartedServer(http.NotFoundHandler())
	own.StartTLS()
	own.Close()
	server := &http.Server{TLSConfig: c.Config(&tls.Config{Certificates: own.TLS.Certificates}),
		ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = server.ServeTLS(s.gateway, "", "") }()
	t.Cleanup(func() { server.Close() })
}

func (s *acmeServer) open(t *testing.T, cache string, names ...string) *Certificates {
	t.Helper()
	c, err := New(Options{Directory: s.directory, Names: names, Cache: cache, Roots: s.caFile,
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	c.pollEvery = 10 * time.Millisecond
	written := &closableCache{Cache: c.manager.Cache}
	c.manager.Cache = written
	t.Cleanup(written.close)
	return c
}

// closableCache refuses to write after close. The manager renews certificates in goroutines that do not end with the
// test; without it they may write into the test's directory while that is removed.
type closableCache struct {
	autocert.Cache
	mu     sync.Mutex
	closed bool
}

func (c *closableCache) Put(ctx context.Context, key string, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errors.New("the test has ended")
	}
	return c.Cache.Put(ctx, key, data)
}

func (c *closableCache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// run runs the certificates until the test ends.
func run(t *testing.T, c *Certificates) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
	})
}

// shown returns the certificate that a client that asks for a name sees.
func (s *acmeServer) shown(t *testing.T, name string, protocols ...string) *x509.Certificate {
	t.Helper()
	conn, err := tls.Dial("tcp", s.gateway.Addr().String(), &tls.Config{InsecureSkipVerify: true, ServerName: name,
		NextProtos: protocols})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0]
}

// await waits until the server shows a certificate of the ACME server other than before, and returns it.
func (s *acmeServer) await(t *testing.T, name string, before *x509.Certificate) *x509.Certificate {
	t.Helper()
	for end := time.Now().Add(hangLimit); ; <-time.After(20 * time.Millisecond) {
		config := &tls.Config{RootCAs: s.roots, ServerName: name}
		conn, err := tls.Dial("tcp", s.gateway.Addr().String(), config)
		if err == nil {
			cert := conn.ConnectionState().PeerCertificates[0]
			conn.Close()
			if before == nil || !cert.Equal(before) {
				return cert
			}
		}
		if time.Now().After(end) {
			t.Fatalf("no new certificate for %s: %v", name, err)
		}
	}
}

// Certificates are ordered and served; other names, and clients without a name, see the server's own. A restart serves
// what is in the cache.
func TestCertificatesAreOrderedAndServed(t *testing.T) {
	s, cache := startACME(t, 24*time.Hour), filepath.Join(t.TempDir(), "acme")
	const second = "api2.eu-1.example.com"
	c := s.open(t, cache, name, second)
	s.serve(t, c)
	own := s.shown(t, "example.com") // of httptest
	if !s.shown(t, name).Equal(own) {
		t.Error("before the order the server's own certificate is not served")
	}
	run(t, c)
	first := s.await(t, name, nil)
	s.await(t, second, nil)
	if got := testutil.ToFloat64(c.expires.WithLabelValues(name)); got != float64(first.NotAfter.Unix()) {
		t.Errorf("the metric is %v, want %v", got, first.NotAfter.Unix())
	}
	for _, other := range []string{"example.com", "127.0.0.1", "x." + name, "system:platform"} {
		if !s.shown(t, other).Equal(own) {
			t.Errorf("a client that asks for %s sees another certificate than the server's own", other)
		}
	}
	info, err := os.Stat(cache)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the cache: %v, %v", info, err)
	}
	again := s.open(t, cache, name, second)
	again.o.Directory = "unused"
	if err := again.update(name); err != nil || !again.current[name].Leaf.Equal(first) {
		t.Errorf("after a restart another certificate is served, %v", err)
	}
}

// A replica that shares the cache answers the challenge of an order of another one.
func TestAnotherReplicaAnswersTheChallenge(t *testing.T) {
	s, cache := startACME(t, 24*time.Hour), t.TempDir()
	if err := os.Chmod(cache, 0o700); err != nil {
		t.Fatal(err)
	}
	s.serve(t, s.open(t, cache, name)) // it does not run, so it orders nothing
	orders := s.open(t, cache, name)
	for end := time.Now().Add(hangLimit); ; {
		err := orders.update(name)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// A certificate is replaced before it ends, without a restart.
func TestACertificateIsRenewed(t *testing.T) {
	s := startACME(t, time.Hour)
	c := s.open(t, filepath.Join(t.TempDir(), "acme"), name)
	c.manager.RenewBefore = 2 * time.Hour // with the manager's jitter of a tenth it renews at once
	s.serve(t, c)
	run(t, c)
	first := s.await(t, name, nil)
	s.await(t, name, first)
}

// A handshake orders no certificate and waits for none: neither for one of Options.Names, nor with the challenge's
// protocol for any name.
func TestStrangersOrderNothing(t *testing.T) {
	s := startACME(t, 24*time.Hour)
	c := s.open(t, filepath.Join(t.TempDir(), "acme"), name)
	s.serve(t, c)
	own := s.shown(t, name)
	if own == nil || len(c.current) != 0 {
		t.Fatal("a handshake has ordered a certificate")
	}
	for _, stranger := range []string{name, "stranger.example.com"} {
		conn, err := tls.Dial("tcp", s.gateway.Addr().String(), &tls.Config{InsecureSkipVerify: true,
			ServerName: stranger, NextProtos: []string{"acme-tls/1"}})
		if err == nil {
			conn.Close()
			t.Errorf("a challenge for %s that nobody ordered was answered", stranger)
		}
	}
	if !s.shown(t, name, "acme-tls/1", "h2", "http/1.1").Equal(own) {
		t.Error("a client that has other protocols, too, was taken for the ACME server")
	}
	if files, err := os.ReadDir(c.o.Cache); err != nil || len(files) != 0 {
		t.Errorf("the cache has %v, %v: strangers began an order", files, err)
	}
}

// An order that fails is counted, and the server's own certificate is served meanwhile.
func TestAFailedOrderIsTriedAgain(t *testing.T) {
	s := startACME(t, 24*time.Hour)
	c := s.open(t, filepath.Join(t.TempDir(), "acme"), name)
	s.gateway.Close() // no challenge is answered
	run(t, c)
	for end := time.Now().Add(hangLimit); testutil.ToFloat64(c.failed) == 0; <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the failure is not counted")
		}
	}
	if testutil.ToFloat64(c.expires.WithLabelValues(name)) != 0 {
		t.Error("a certificate is shown")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	open := t.TempDir()
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	good := Options{Directory: "https://acme.example.com/directory", Names: []string{name},
		Cache: filepath.Join(open, "c"), Log: slog.New(slog.DiscardHandler)}
	for want, change := range map[string]func(*Options){
		"not an https URL":   func(o *Options) { o.Directory = "http://acme.example.com/directory" },
		"need names":         func(o *Options) { o.Names = nil },
		"not a DNS name":     func(o *Options) { o.Names = []string{"*.example.com"} },
		strconv.Quote("api"): func(o *Options) { o.Names = []string{"api"} },
		"127.0.0.1":          func(o *Options) { o.Names = []string{"127.0.0.1"} },
		"chmod 700":          func(o *Options) { o.Cache = open },
		"the CA of":          func(o *Options) { o.Roots = filepath.Join(open, "none") },
	} {
		o := good
		change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s, got %v", want, err)
		}
	}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
}
