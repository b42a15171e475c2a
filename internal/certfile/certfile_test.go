package certfile

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certificate makes a certificate for names, and its key, in PEM.
func certificate(t *testing.T, serial int64, names ...string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "of a test"},
		DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})
}

type files struct{ certificate, key string }

func newFiles(t *testing.T) files {
	dir := t.TempDir()
	return files{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")}
}

// write replaces files, as programs that renew certificates do. Empty content leaves the file.
func (f files) write(t *testing.T, cert, key []byte) {
	t.Helper()
	for path, content := range map[string][]byte{f.certificate: cert, f.key: key} {
		if content == nil {
			continue
		}
		if err := os.WriteFile(path+".new", content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
}

// expireCheck makes the next call of Certificate read the files, as after a second.
func (p *Pair) expireCheck() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checked = time.Time{}
}

func TestAChangedCertificateIsServedAndABadOneIsNot(t *testing.T) {
	f := newFiles(t)
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	if _, err := Open(f.certificate, f.key, logger); err == nil {
		t.Error("missing files are accepted")
	}
	first, firstKey := certificate(t, 1, "api.example.org")
	f.write(t, first, firstKey)
	p, err := Open(f.certificate, f.key, logger)
	if err != nil {
		t.Fatal(err)
	}
	serves := func(serial int64, when string) {
		t.Helper()
		p.expireCheck()
		if got := p.Certificate().Leaf.SerialNumber.Int64(); got != serial {
			t.Errorf("%s: serves %d, want %d", when, got, serial)
		}
	}
	second, secondKey := certificate(t, 2, "api.example.org")
	f.write(t, second, nil)
	serves(1, "the certificate is new, and the key is not yet")
	serves(1, "still")
	f.write(t, nil, secondKey)
	serves(2, "both are new")
	nameless, namelessKey := certificate(t, 3)
	f.write(t, nameless, namelessKey)
	serves(2, "the new one has no name")
	f.write(t, []byte("damage"), nil)
	serves(2, "damage")
	os.Remove(f.key)
	serves(2, "a missing key")
	if n := strings.Count(log.String(), "no good"); n != 4 {
		t.Errorf("%d lines, want one for each change:\n%s", n, log.String())
	}
	if strings.Contains(log.String(), "PRIVATE") {
		t.Error("the log has the key")
	}
	third, thirdKey := certificate(t, 4, "api.example.org")
	f.write(t, third, thirdKey)
	serves(4, "good files after bad ones")
}

// The public certificate is shown for its names, and the server's own for everything else. The rest of the server's
// configuration stays: its clients' certificates and its choice for each client.
func TestTheNameChoosesTheCertificate(t *testing.T) {
	f := newFiles(t)
	public, publicKey := certificate(t, 1, "api.example.org", "*.api.example.org")
	f.write(t, public, publicKey)
	p, err := Open(f.certificate, f.key, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ownCert, ownKey := certificate(t, 99, "platform")
	own, err := tls.X509KeyPair(ownCert, ownKey)
	if err != nil {
		t.Fatal(err)
	}
	base := &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &own, nil }}
	outer := base.Clone()
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return base, nil }
	for name, config := range map[string]*tls.Config{"with a choice": outer, "without": base} {
		config := p.Config(config)
		for host, serial := range map[string]int64{"api.example.org": 1, "eu.api.example.org": 1, "API.example.org": 1,
			"platform": 99, "": 99, "example.org": 99, "a.b.api.example.org": 99, "api.example.org.evil.example": 99} {
			if got, asked := handshake(t, config, host); got != serial || !asked {
				t.Errorf("%s: %q gets certificate %d, want %d; the client's certificate was asked for: %t", name, host, got,
					serial, asked)
			}
		}
	}
}

// handshake returns the serial number of the certificate that a server shows, and whether it asks for the client's.
func handshake(t *testing.T, config *tls.Config, host string) (serial int64, asked bool) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() { _ = tls.Server(a, config).HandshakeContext(t.Context()) }()
	client := tls.Client(b, &tls.Config{ServerName: host, InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked = true
			return &tls.Certificate{}, nil
		}})
	if err := client.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return client.ConnectionState().PeerCertificates[0].SerialNumber.Int64(), asked
}
