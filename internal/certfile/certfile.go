// Package certfile serves a certificate from two files beside the certificate that a server has anyway.
//
// A public certificate is renewed by a program that replaces the files, as certbot and cert-manager do. The
// package reads them again when they have changed, so that the server need not be started again. It is a
// tool: it imports no package of ours, and any service may import it.
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
	seen    contentHash // that current, or the last failure, is from
	checked time.Time
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
// of its names, and the server's own to all others. A name needs a certificate for it exactly: a client
// without a name gets the server's own.
func (p *Pair) Config(server *tls.Config) *tls.Config {
	return WithCertificate(server, func(string) *tls.Certificate { return p.Certificate() })
}

// WithCertificate returns a copy of a server's configuration that shows the result of find to clients that ask for a
// name that it is for, and the server's own to all others. find gets the name, and returns nil when it has none.
func WithCertificate(server *tls.Config, find func(name string) *tls.Certificate) *tls.Config {
	c := server.Clone()
	inner := server.GetConfigForClient
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		of := server
		if inner != nil {
			chosen, err := inner(hello)
			if err != nil {
				return nil, err
			}
			if chosen != nil {
				of = chosen
			}
		}
		if hello.ServerName == "" {
			return of, nil
		}
		own := find(hello.ServerName)
		if own == nil || own.Leaf.VerifyHostname(hello.ServerName) != nil {
			return of, nil
		}
		of = of.Clone()
		of.Certificates, of.GetCertificate = nil, func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own, nil }
		return of, nil
	}
	return c
}

// Certificate returns the certificate of the files. When the new content is no good, or only one of the files
// is new yet, it returns the last good one and logs the reason once.
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

// load reads the files, and replaces the certificate when they have changed and are good. Errors never
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
