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

// Keys are a client's side of TLS: PEM, or files that hold it. What is here
// itself wins over a file. Without any there is no TLS; without a CA the
// system's are trusted; the certificate and its key come together.
type Keys struct {
	CAFile, CertFile, KeyFile string
	CA, Cert, Key             []byte
}

// Empty tells that there is no TLS.
func (k Keys) Empty() bool {
	return cmp.Or(k.CAFile, k.CertFile, k.KeyFile) == "" && len(k.CA)+len(k.Cert)+len(k.Key) == 0
}

func (k Keys) String() string { return "keys" } // not into logs

type fingerprint [sha256.Size]byte

// loadKeys reads keys where they are now. Without any the configuration is nil.
func loadKeys(from func() (Keys, error)) (*tls.Config, fingerprint, error) {
	k, err := from()
	if err != nil || k.Empty() {
		return nil, fingerprint{}, err
	}
	return k.load()
}

// load reads what the files hold now. The fingerprint is of their content.
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
