package pki

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"atoll.dev/internal/atomicfile"
)

// TestTheSigningServiceIsReachedByAnyHost: a client verifies the signing service's name and not the host of its URL, so
// the service may be behind a Service of Kubernetes or a load balancer.
func TestTheSigningServiceIsReachedByAnyHost(t *testing.T) {
	ca, err := OpenCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	token, err := ca.CreateToken("edge-7", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	caFile := filepath.Join(dir, "ca.pem")
	if err := atomicfile.Write(caFile, ca.CertPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(serveCA(t, ca), "https://")
	id, err := OpenIdentity(t.Context(), IdentityOptions{
		Dir: filepath.Join(dir, "identity"), Name: "edge-7", URL: "https://pki.r1.example:8443", CAFile: caFile,
		Token: token,
		dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := id.renewByCertificate(t.Context()); err != nil {
		t.Errorf("renewing: %v", err)
	}
}
