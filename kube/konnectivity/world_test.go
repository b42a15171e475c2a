package konnectivity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	upstream "sigs.k8s.io/apiserver-network-proxy/pkg/agent"
)

// hangLimit ends a test that waits for nothing.
const hangLimit = 2 * time.Minute

// world is a server for agents behind a split listener, and its authority.
type world struct {
	t      *testing.T
	server *Server
	addr   string
	others net.Listener
	ca     *x509.Certificate
	key    *ecdsa.PrivateKey
}

func newWorld(t *testing.T, egress Egress) *world {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	w := &world{t: t, key: key}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	check(t, err)
	w.ca, err = x509.ParseCertificate(der)
	check(t, err)
	dir := t.TempDir()
	o := Options{Serving: filepath.Join(dir, "serving"), ClientCA: filepath.Join(dir, "ca"), Egress: egress,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	check(t, os.WriteFile(o.ClientCA, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	cert, keyPEM := w.sign(pkix.Name{CommonName: "kube-apiserver"}, x509.ExtKeyUsageServerAuth)
	check(t, os.WriteFile(o.Serving, append(cert, keyPEM...), 0o600))
	w.server, err = New(o)
	check(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	w.addr = l.Addr().String()
	agents, others := Split(l)
	w.others = others
	go w.server.Serve(agents)
	t.Cleanup(func() { others.Close(); w.server.Stop() })
	return w
}

func (w *world) sign(subject pkix.Name, usage x509.ExtKeyUsage) (cert, keyPEM []byte) {
	w.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(w.t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(2), Subject: subject,
		DNSNames: []string{"plane"}, ExtKeyUsage: []x509.ExtKeyUsage{usage}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour)}, w.ca, key.Public(), w.key)
	check(w.t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	check(w.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

// tls returns a client's configuration with a certificate of the subject.
func (w *world) tls(subject pkix.Name) *tls.Config {
	w.t.Helper()
	pair, err := tls.X509KeyPair(w.sign(subject, x509.ExtKeyUsageClientAuth))
	check(w.t, err)
	roots := x509.NewCertPool()
	roots.AddCert(w.ca)
	return &tls.Config{ServerName: "plane", RootCAs: roots, Certificates: []tls.Certificate{pair},
		NextProtos: []string{Protocol}}
}

func node(name string) pkix.Name {
	return pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}
}

// startAgent runs upstream's agent, with the settings of decision 109, until stop is called.
func (w *world) startAgent(name, identifiers string) (stop func()) {
	w.t.Helper()
	stopping := make(chan struct{})
	set := (&upstream.ClientSetConfig{
		Address: w.addr, AgentID: name, AgentIdentifiers: identifiers, XfrChannelSize: 150,
		SyncInterval: time.Second, SyncIntervalCap: 5 * time.Second, ProbeInterval: time.Second,
		DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(w.tls(node(name))))},
	}).NewAgentClientSet(make(chan struct{}), stopping)
	set.SetServerCounter(oneServer{})
	set.Serve()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			close(stopping)
		}
	}
	w.t.Cleanup(stop)
	w.await("the agent of "+name, func() bool { return w.has(name) })
	return stop
}

func (w *world) has(name string) bool {
	w.server.agents.mu.Lock()
	defer w.server.agents.mu.Unlock()
	return w.server.agents.newest(name) != nil
}

func (w *world) await(what string, done func() bool) {
	w.t.Helper()
	limit := time.After(hangLimit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-limit:
			w.t.Fatalf("waited too long for %s", what)
		}
	}
}

// echo returns the address of a server that sends back what it receives.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.Copy(conn, conn)
			}()
		}
	}()
	return l.Addr().String()
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// oneServer is the number of servers for upstream's agent.
type oneServer struct{}

func (oneServer) Count() int { return 1 }
