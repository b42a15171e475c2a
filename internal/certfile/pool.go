package certfile

import (
	"crypto/x509"
	"fmt"
	"os"
)

// ReadPool returns a pool with the certificates of a PEM file, and without those of the system. It fails when the file
// cannot be read or has no certificate; the error names the file.
func ReadPool(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no PEM certificate", file)
	}
	return pool, nil
}
