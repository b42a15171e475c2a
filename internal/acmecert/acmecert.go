// Package acmecert gets public certificates by ACME (RFC 8555), and serves them beside the server's own certificate.
//
// golang.org/x/crypto/acme/autocert implements the protocol. The package orders certificates in the background only: no
// handshake waits for an order or begins one, so a stranger cannot use up the limits of the ACME server. The challenge
// is tls-alpn-01, on the port of the server itself. It is a tool: any service may import it.
package acmecert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"

	"atoll.dev/internal/certfile"
	"atoll.dev/internal/pause"
)

// Options of certificates. All fields are required, except those with a default.
type Options struct {
	Directory string   // URL of the ACME server
	Names     []string // a certificate is ordered for each
	// Cache is a directory for the account's key, certificates and challenges, which only this user may read. Replicas
	// share it, because the ACME server may send its challenge to another replica than the one that ordered.
	Cache string
	Email string // of the account; default none
	Roots string // PEM file of the CAs that the ACME server's own certificate is from; default the system's
	Log   *slog.Logger
	// Metrics, unless nil, gets acme_certificate_expires_timestamp_seconds by name, and acme_failures_total.
	Metrics prometheus.Registerer
}

// Certificates are the certificates of an ACME server. Several goroutines may call its methods.
type Certificates struct {
	o         Options
	manager   *autocert.Manager
	pollEvery time.Duration // pollInterval; a test sets another
	expires   *prometheus.GaugeVec
	failed    prometheus.Counter

	mu      sync.Mutex
	current map[string]*tls.Certificate // by name
}

const (
	pollInterval = time.Minute      // between two calls that ask the manager for its certificate; it renews by itself
	firstBackOff = 30 * time.Second // after a failure; it doubles
	maxBackOff   = time.Hour        // Let's Encrypt accepts five failures of a name in an hour
	httpTimeout  = 30 * time.Second
)

var namePattern = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// New checks the options, and makes the directory of the cache. Run orders the certificates.
func New(o Options) (*Certificates, error) {
	directory, err := url.Parse(o.Directory)
	if err != nil || directory.Scheme != "https" || directory.Host == "" {
		return nil, fmt.Errorf("the ACME directory %q is not an https URL", o.Directory)
	}
	if len(o.Names) == 0 || o.Cache == "" {
		return nil, errors.New("certificates by ACME need names and a directory for their cache")
	}
	for _, name := range o.Names {
		if !namePattern.MatchString(name) || net.ParseIP(name) != nil {
			return nil, fmt.Errorf("%q is not a DNS name in lower case with a dot, which an ACME server certifies", name)
		}
	}
	if err := os.MkdirAll(o.Cache, 0o700); err != nil {
		return nil, fmt.Errorf("the cache of ACME: %w", err)
	}
	info, err := os.Stat(o.Cache)
	if err != nil {
		return nil, fmt.Errorf("the cache of ACME: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("others can read the cache of ACME, which has keys: chmod 700 %s", o.Cache)
	}
	client := &http.Client{Timeout: httpTimeout}
	if o.Roots != "" {
		roots, err := certfile.ReadPool(o.Roots)
		if err != nil {
			return nil, fmt.Errorf("the CA of the ACME server: %w", err)
		}
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		client.Transport = transport
	}
	c := &Certificates{o: o, pollEvery: pollInterval, current: map[string]*tls.Certificate{}, manager: &autocert.Manager{
		Prompt: autocert.AcceptTOS, Cache: autocert.DirCache(o.Cache), HostPolicy: autocert.HostWhitelist(o.Names...),
		Client: &acme.Client{DirectoryURL: o.Directory, HTTPClient: client, UserAgent: "atoll"}, Email: o.Email,
	}}
	c.expires = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "acme_certificate_expires_timestamp_seconds",
		Help: "End of the certificate that is served for a name, in Unix time; 0 when there is none."}, []string{"name"})
	c.failed = prometheus.NewCounter(prometheus.CounterOpts{Name: "acme_failures_total",
		Help: "Orders of certificates that failed; they are tried again after 30 s to an hour."})
	for _, name := range o.Names {
		c.expires.WithLabelValues(name).Set(0)
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(c.expires, c.failed)
	}
	return c, nil
}

// Run orders the certificates that are not in the cache, and renews each at the last third of its validity or 30 days
// before its end, until ctx ends. It returns the cause of ctx's end. A failure is logged; one name delays no other.
func (c *Certificates) Run(ctx context.Context) error {
	var names sync.WaitGroup
	for _, name := range c.o.Names {
		names.Go(func() { c.serveName(ctx, name) })
	}
	names.Wait()
	return context.Cause(ctx)
}

// serveName serves the certificate of one name, and each certificate that replaces it, until ctx ends.
func (c *Certificates) serveName(ctx context.Context, name string) {
	for backOff := time.Duration(0); ; {
		updated := make(chan error, 1)
		go func() { updated <- c.update(name) }() // an order takes up to five minutes, and does not end with ctx
		var err error
		select {
		case err = <-updated:
		case <-ctx.Done():
			return
		}
		wait := c.pollEvery
		if err == nil {
			backOff = 0
		} else {
			backOff = min(maxBackOff, max(firstBackOff, 2*backOff))
			wait = backOff
			c.failed.Inc()
			c.o.Log.Warn("getting a certificate by ACME failed; it is tried again", "name", name, "server", c.o.Directory,
				"after", wait, "error", err)
		}
		if !pause.For(ctx, wait) {
			return
		}
	}
}

// update serves the certificate that the manager has for a name. The manager orders one if there is none in its cache
// that is valid; it renews by itself what it has loaded.
func (c *Certificates) update(name string) error {
	cert, err := c.manager.GetCertificate(&tls.ClientHelloInfo{ServerName: name,
		SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}, SupportedCurves: []tls.CurveID{tls.CurveP256},
		CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}})
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if have := c.current[name]; have != nil && have.Leaf.Equal(leaf) {
		return nil
	}
	served := *cert
	served.Leaf = leaf
	c.current[name] = &served
	c.expires.WithLabelValues(name).Set(float64(leaf.NotAfter.Unix()))
	c.o.Log.Info("a certificate by ACME is served", "name", name, "issuer", leaf.Issuer.String(), "until", leaf.NotAfter)
	return nil
}

// Config returns a copy of a server's configuration. A client that asks for a name of Options.Names gets the ACME
// certificate of the name, unless that has expired; the ACME server gets the answer to its challenge; all other clients
// get the server's own certificate.
func (c *Certificates) Config(server *tls.Config) *tls.Config {
	withNames := certfile.WithCertificate(server, func(name string) *tls.Certificate {
		c.mu.Lock()
		cert := c.current[name]
		c.mu.Unlock()
		if cert == nil || time.Now().After(cert.Leaf.NotAfter) {
			return nil
		}
		return cert
	})
	inner := withNames.GetConfigForClient
	challenge := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{acme.ALPNProto},
		GetCertificate: c.manager.GetCertificate}
	withNames.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if slices.Equal(hello.SupportedProtos, []string{acme.ALPNProto}) {
			return challenge, nil
		}
		return inner(hello)
	}
	return withNames
}
