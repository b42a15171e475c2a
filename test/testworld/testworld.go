// Package testworld starts, inside a test, the parts of a region that the test needs: listeners, certificates, a
// lifecycle manager on a real PostgreSQL. Each part ends with its test, and a part that ends with an error fails it.
//
// It is for tests that compose packages in their own process. Package localtest starts a whole region as processes. A
// test in the same package as a service that testworld imports must be an external one (package x_test).
package testworld

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"testing"
	"time"

	"atoll.dev/pki"
)

// HangLimit is how long Eventually waits. Only a hang exceeds it, on a machine under any load.
const HangLimit = 3 * time.Minute

// Eventually calls check every 20 ms until it returns nil. After HangLimit it fails the test with the last error, which
// should say the state that check found.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(HangLimit)
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("%s: the test ended before it was so: %v", what, err)
		case <-limit:
			t.Fatalf("%s: not within %s: %v", what, HangLimit, err)
		case <-tick.C:
		}
	}
}

// Run runs a part until the test ends, and waits for its end. The part must return when its context is cancelled.
func Run(t testing.TB, name string, part func(context.Context) error) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%s ended with an error: %v", name, err)
		}
	})
}

// Listen returns a listener on a free port of 127.0.0.1. The part that serves on it closes it.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Certificate returns a new key with a certificate that the authority signed for the name.
func Certificate(t testing.TB, ca *pki.CA, name pki.Name) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.Sign(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}), name)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}
