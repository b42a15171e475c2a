// Package certfile serves a certificate from two files beside the certificate that a server has anyway.
//
// A public certificate is renewed by a program that replaces the files, as certbot and cert-manager do. The package
// reads them again when they have changed, so that the server need not be started again. ReadPool reads the
// certificates that a client or server trusts. It is a tool: it imports no package of ours, and any service may
// import it.
package certfile

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Pair is a certificate with its key, in two PEM files. Its methods may be called at once.
type Pair struct {
	certificate, key string // files
	log              *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	seen    contentHash // of the files when they were last read
	checked time.Time   // when they were last read
}

// contentHash is a hash of the content of both files. The zero value means that the files cannot be read. Sizes and
// times of files do not show each change: two renewals can have the same.
type contentHash [sha256.Size]byte

// checkEvery bounds how often the files are read.
const checkEvery = time.Second

// Open reads the files. The first certificate of the file is the server's, the others are its chain.
func Open(certificate, key string, log *slog.Logger) (*Pair, error) {
	p := &Pair{certificate: certificate, key: key, log: log}
	if err := p.load(); err != nil {
		return nil, err
	}
	p.checked = time.Now()
	return p, nil
}

// Config returns a copy of a server's configuration that shows this certificate to clients that ask for one
// of its names, and the server's own certificate to all others, also to a client that asks for no name.
func (p *Pair) Config(server *tls.Config) *tls.Config {
	return WithCertificate(server, func(string) *tls.Certificate { return p.Certificate() })
}

// WithCertificate returns a copy of a server's configuration that shows further certificates. find gets the name that a
// client asks for, and returns a certificate or nil. A client gets that certificate when it is valid for the name, and
// the server's own certificate otherwise.
func WithCertificate(server *tls.Config, find func(name string) *tls.Certificate) *tls.Config {
	c := server.Clone()
	inner := server.GetConfigForClient
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		config := server
		if inner != nil {
			chosen, err := inner(hello)
			if err != nil {
				return nil, err
			}
			if chosen != nil {
				config = chosen
			}
		}
		if hello.ServerName == "" {
			return config, nil
		}
		found := find(hello.ServerName)
		if found == nil || found.Leaf.VerifyHostname(hello.ServerName) != nil {
			return config, nil
		}
		config = config.Clone()
		config.Certificates = nil
		config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return found, nil }
		return config, nil
	}
	return c
}

// Certificate returns the certificate of the files. When their new content is invalid, or only one of the files has
// been replaced yet, it returns the last valid certificate and logs the reason once.
func (p *Pair) Certificate() *tls.Certificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.checked) < checkEvery && !now.Before(p.checked) {
		return p.current
	}
	p.checked = now
	before := p.seen
	if err := p.load(); err != nil && p.seen != before { // else it was logged
		p.log.Warn("the new public certificate is no good; the last one is used", "error", err)
	}
	return p.current
}

// load reads the files, and replaces the certificate when they have changed and are valid. Errors never
// contain the key.
func (p *Pair) load() error {
	var content [2][]byte
	for i, path := range []string{p.certificate, p.key} {
		var err error
		if content[i], err = os.ReadFile(path); err != nil {
			p.seen = contentHash{}
			return fmt.Errorf("public certificate: %w", err)
		}
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%d\n", len(content[0]))
	hash.Write(content[0])
	hash.Write(content[1])
	seen := contentHash(hash.Sum(nil))
	if seen == p.seen {
		return nil
	}
	p.seen = seen
	pair, err := tls.X509KeyPair(content[0], content[1])
	if err != nil {
		return fmt.Errorf("public certificate %s with key %s: %w", p.certificate, p.key, err)
	}
	if len(pair.Leaf.DNSNames) == 0 && len(pair.Leaf.IPAddresses) == 0 {
		return fmt.Errorf("public certificate %s: it has no name", p.certificate)
	}
	p.current = &pair
	return nil
}
