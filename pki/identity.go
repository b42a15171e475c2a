package pki

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

const (
	identityFile = "identity.pem"

	retryMin = 250 * time.Millisecond
	retryMax = time.Minute
)

// ErrNotEnrolled means that there is neither a valid certificate nor a token to
// get one with.
var ErrNotEnrolled = errors.New("no valid certificate and no join token")

// IdentityOptions say who a process is and where its certificate comes from.
type IdentityOptions struct {
	// Dir keeps identity.pem: the key, and its certificate once there is one.
	// It is a directory of this identity alone. Required.
	Dir string
	// Name is the expected common name; a certificate with another is refused.
	// Required.
	Name Name
	// URL is where the signing service listens, https://host:port. Required.
	URL string
	// CAFile holds the region CA's certificate, which both the signing service
	// and all peers are verified against. Required.
	CAFile string
	// Token, or the content of TokenFile, enrols when there is no valid
	// certificate. TokenFile is removed once the certificate is on disk.
	Token     string
	TokenFile string
	// Logger takes renewals and failures; nil means slog.Default.
	Logger *slog.Logger

	dial func(ctx context.Context, network, addr string) (net.Conn, error) // tests set it
}

// An Identity is a process's key and certificate, kept valid by [Identity.Run].
// It is safe for concurrent use.
type Identity struct {
	o       IdentityOptions
	roots   *x509.CertPool
	current atomic.Pointer[tls.Certificate]
}

// OpenIdentity loads the identity in Dir, or makes a key there and enrols.
//
// The key is on disk before it is sent for signing and the token can be
// redeemed again with the same key, so that a process that was killed at any
// point enrols when it is started again. OpenIdentity tries until ctx is done
// while the signing service does not answer, and returns at once when the
// service refuses, when a file is damaged, or with [ErrNotEnrolled].
func OpenIdentity(ctx context.Context, o IdentityOptions) (*Identity, error) {
	id, err := openIdentity(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("opening identity %s in %s: %w", o.Name, o.Dir, err)
	}
	return id, nil
}

func openIdentity(ctx context.Context, o IdentityOptions) (*Identity, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if err := o.Name.Validate(); err != nil {
		return nil, err
	}
	id := &Identity{o: o}
	if err := id.loadRoots(ctx); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := sweepTemp(o.Dir); err != nil {
		return nil, err
	}

	key, cert, err := id.load()
	if err != nil {
		return nil, err
	}
	unusable := errors.New("there is no certificate yet")
	if cert != nil {
		if unusable = id.check(cert); unusable == nil {
			if err := id.use(key, cert.Raw); err != nil {
				return nil, err
			}
			return id, id.dropToken()
		}
	}
	token, err := id.token()
	if err != nil {
		return nil, err
	}
	if token == "" {
		return nil, fmt.Errorf("%w: %w; make a token with the region's pki and pass it", ErrNotEnrolled, unusable)
	}
	if err := id.enrol(ctx, key, token); err != nil {
		return nil, err
	}
	return id, nil
}

// loadRoots reads the CA's certificate. It waits for the file: the process that
// writes it may be starting, too.
func (id *Identity) loadRoots(ctx context.Context) error {
	for attempt := 0; ; attempt++ {
		data, err := os.ReadFile(id.o.CAFile)
		if err == nil {
			id.roots = x509.NewCertPool()
			if !id.roots.AppendCertsFromPEM(data) {
				return fmt.Errorf("CA file %s holds no certificate; write the region's there", id.o.CAFile)
			}
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) || pause(ctx, backoff(attempt)) != nil {
			return fmt.Errorf("reading the CA's certificate: %w", err)
		}
	}
}

// load reads identity.pem, and makes it with a new key when there is none.
func (id *Identity) load() (*ecdsa.PrivateKey, *x509.Certificate, error) {
	path := id.path()
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		key, err := newKey()
		if err != nil {
			return nil, nil, err
		}
		if data, err = encodeKey(key); err == nil {
			err = createFile(path, data, 0o600)
		}
		if !errors.Is(err, fs.ErrExist) {
			return key, nil, err
		}
		data, err = os.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
	} else if err != nil {
		return nil, nil, err
	}
	key, cert, err := decodePair(data)
	if err != nil {
		return nil, nil, fmt.Errorf("identity file %s is damaged: %w; remove it and enrol with a new join token", path, err)
	}
	return key, cert, nil
}

// check reports why a certificate does not prove this identity now.
func (id *Identity) check(cert *x509.Certificate) error {
	if cert.Subject.CommonName != string(id.o.Name) {
		return fmt.Errorf("the certificate is that of %q", cert.Subject.CommonName)
	}
	_, err := cert.Verify(x509.VerifyOptions{Roots: id.roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}

// save puts key and certificate on disk as one file, and then into use.
func (id *Identity) save(key *ecdsa.PrivateKey, cert *x509.Certificate) error {
	data, err := encodeKey(key)
	if err != nil {
		return err
	}
	if err := writeFile(id.path(), append(data, encodeCert(cert.Raw)...), 0o600); err != nil {
		return err
	}
	return id.use(key, cert.Raw)
}

func (id *Identity) use(key *ecdsa.PrivateKey, der []byte) error {
	c, err := newTLSCertificate(der, key)
	if err != nil {
		return err
	}
	id.current.Store(c)
	return nil
}

// enrol redeems token for key until it succeeds or is refused.
func (id *Identity) enrol(ctx context.Context, key *ecdsa.PrivateKey, token string) error {
	for attempt := 0; ; attempt++ {
		cert, err := id.requestCertificate(ctx, key, token)
		if err == nil {
			if err := id.save(key, cert); err != nil {
				return err
			}
			return id.dropToken()
		}
		if r, ok := errors.AsType[*refusal](err); ok && r.final() {
			return fmt.Errorf("enrolling at %s: %w", id.o.URL, err)
		}
		id.o.Logger.LogAttrs(ctx, slog.LevelWarn, "enrolment will be tried again",
			slog.String("identity", string(id.o.Name)), slog.Any("error", err))
		if err := pause(ctx, backoff(attempt)); err != nil {
			return fmt.Errorf("enrolling at %s: %w", id.o.URL, err)
		}
	}
}

// Run keeps the certificate valid until ctx is done: it renews at two thirds of
// its life, with a new key, and tries again with back-off as long as it takes.
// Connections that are open stay as they are; new ones show the new
// certificate. It returns nil.
func (id *Identity) Run(ctx context.Context) error {
	for attempt := 0; ; {
		wait := time.Until(renewAt(id.Certificate()))
		if attempt > 0 {
			wait = backoff(attempt)
		}
		if pause(ctx, wait) != nil {
			return nil
		}
		if err := id.Renew(ctx); err != nil {
			attempt++
			id.o.Logger.LogAttrs(ctx, slog.LevelWarn, "certificate not renewed, will be tried again",
				slog.String("identity", string(id.o.Name)), slog.Any("error", err),
				slog.Time("expires", id.Certificate().NotAfter))
			continue
		}
		attempt = 0
		id.o.Logger.LogAttrs(ctx, slog.LevelInfo, "certificate renewed",
			slog.String("identity", string(id.o.Name)), slog.Time("expires", id.Certificate().NotAfter))
	}
}

// Renew gets a certificate for a new key now, by the present certificate; by
// the join token, when there is one, if that has expired.
func (id *Identity) Renew(ctx context.Context) error {
	key, err := newKey()
	if err != nil {
		return err
	}
	token := ""
	if id.check(id.Certificate()) != nil {
		// The file's key, as at first: the token may have been spent on it.
		if key, _, err = id.load(); err != nil {
			return err
		}
		if token, err = id.token(); err != nil {
			return err
		}
		if token == "" {
			return fmt.Errorf("renewing the certificate: %w", ErrNotEnrolled)
		}
	}
	cert, err := id.requestCertificate(ctx, key, token)
	if err != nil {
		return fmt.Errorf("renewing the certificate at %s: %w", id.o.URL, err)
	}
	if err := id.save(key, cert); err != nil {
		return err
	}
	return id.dropToken()
}

// Enrolled reports whether dir holds an identity with a certificate that has
// not expired, so that no join token is needed. It does not say whose.
func Enrolled(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, identityFile))
	if err != nil {
		return false
	}
	_, cert, err := decodePair(data)
	return err == nil && cert != nil && time.Now().Before(cert.NotAfter)
}

// Check is a readiness check: the certificate is valid now.
func (id *Identity) Check(context.Context) error { return id.check(id.Certificate()) }

// Name returns the identity's name.
func (id *Identity) Name() Name { return id.o.Name }

// Certificate returns the present certificate.
func (id *Identity) Certificate() *x509.Certificate { return id.current.Load().Leaf }

// ServerTLS returns the configuration of a server with this identity. Clients
// are verified against the region's CA; mutual says whether one without
// a certificate is refused. [PeerName] tells who it is. Renewals are picked up
// by the next connection.
func (id *Identity) ServerTLS(mutual bool) *tls.Config {
	auth := tls.VerifyClientCertIfGiven
	if mutual {
		auth = tls.RequireAndVerifyClientCert
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: auth,
		ClientCAs:  id.roots,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return id.current.Load(), nil
		},
		// A resumed session would outlive a certificate's verification.
		SessionTicketsDisabled: true,
	}
}

// ClientTLS returns the configuration of a client with this identity that
// expects a server with the given name: a service's. An empty name stands for
// the host that is dialled, which for a loopback address is any service.
func (id *Identity) ClientTLS(serverName string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    id.roots,
		ServerName: serverName,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return id.current.Load(), nil
		},
	}
}

func (id *Identity) path() string { return filepath.Join(id.o.Dir, identityFile) }

// token returns the join token, or "" when there is none.
func (id *Identity) token() (string, error) {
	if id.o.Token != "" || id.o.TokenFile == "" {
		return id.o.Token, nil
	}
	data, err := os.ReadFile(id.o.TokenFile)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading the join token: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// dropToken removes the token file, which is of no use once there is a
// certificate on disk.
func (id *Identity) dropToken() error {
	if id.o.TokenFile == "" {
		return nil
	}
	if err := os.Remove(id.o.TokenFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the used join token: %w", err)
	}
	return nil
}

// renewAt is two thirds into a certificate's life, which begins when it was
// issued: from NotBefore, a short life would have been over at its birth.
func renewAt(c *x509.Certificate) time.Time {
	issued := c.NotBefore.Add(skew)
	return issued.Add(c.NotAfter.Sub(issued) / 3 * 2)
}

func newTLSCertificate(der []byte, key *ecdsa.PrivateKey) (*tls.Certificate, error) {
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// backoff doubles from retryMin to retryMax, with jitter: it spreads what many
// processes do after one outage.
func backoff(attempt int) time.Duration {
	d := retryMin << min(attempt, 8)
	d = min(d, retryMax)
	return d/2 + rand.N(d/2)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
