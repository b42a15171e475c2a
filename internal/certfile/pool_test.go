package certfile

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAPoolHasTheCertificatesOfItsFile(t *testing.T) {
	cert, key := certificate(t, 1, "a.example")
	file := filepath.Join(t.TempDir(), "ca.pem")
	if _, err := ReadPool(file); !os.IsNotExist(err) {
		t.Errorf("a missing file: %v", err)
	}
	if err := os.WriteFile(file, key, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadPool(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file without a certificate: %v", err)
	}
	if err := os.WriteFile(file, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	pool, err := ReadPool(file)
	if err != nil {
		t.Fatal(err)
	}
	want := x509.NewCertPool()
	want.AppendCertsFromPEM(cert)
	if !pool.Equal(want) {
		t.Error("the pool has other certificates")
	}
}
