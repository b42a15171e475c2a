package bus

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Keys are a client's TLS files or their content, as PEM. Content takes precedence over
// a file. When Keys are empty the client does not use TLS; without a CA it trusts the
// system's. A certificate requires its key.
type Keys struct {
	CAFile, CertFile, KeyFile string
	CA, Cert, Key             []byte
}

// Empty reports whether there are no keys, so that the client does not use TLS.
func (k Keys) Empty() bool {
	return cmp.Or(k.CAFile, k.CertFile, k.KeyFile) == "" && len(k.CA)+len(k.Cert)+len(k.Key) == 0
}

// String hides the keys from logs.
func (k Keys) String() string { return "keys" }

// fingerprint is a hash of the content of Keys.
type fingerprint [sha256.Size]byte

// loadKeys reads the present keys. The configuration is nil when they are empty.
func loadKeys(from func() (Keys, error)) (*tls.Config, fingerprint, error) {
	k, err := from()
	if err != nil || k.Empty() {
		return nil, fingerprint{}, err
	}
	return k.load()
}

// load reads the files and returns the TLS configuration and the fingerprint of the
// content.
func (k Keys) load() (*tls.Config, fingerprint, error) {
	var sum fingerprint
	digest := sha256.New()
	for _, part := range []struct {
		pem  *[]byte
		file string
	}{{&k.CA, k.CAFile}, {&k.Cert, k.CertFile}, {&k.Key, k.KeyFile}} {
		if len(*part.pem) == 0 && part.file != "" {
			data, err := os.ReadFile(part.file)
			if err != nil {
				return nil, sum, fmt.Errorf("reading the broker's keys: %w", err)
			}
			*part.pem = data
		}
		fmt.Fprintf(digest, "%d\n", len(*part.pem))
		digest.Write(*part.pem)
	}
	digest.Sum(sum[:0])
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(k.CA) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(k.CA) {
			return nil, sum, errors.New("the broker's CA is no PEM certificate")
		}
	}
	if len(k.Cert) > 0 || len(k.Key) > 0 {
		pair, err := tls.X509KeyPair(k.Cert, k.Key)
		if err != nil {
			return nil, sum, fmt.Errorf("the client certificate for the broker: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, sum, nil
}
