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
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/pause"
)

const (
	identityFile = "identity.pem"
	pendingFile  = "pending.pem" // a new key for which a join token may have been redeemed
	renewalFile  = "renewal.pem" // the key of a renewal that the CA has not confirmed
	spentFile    = "spent"       // the hash of the last redeemed join token

	retryMin = 250 * time.Millisecond
	retryMax = time.Minute
	// clockCheck is the interval at which Run reads the clock: timers do not run while a
	// machine sleeps.
	clockCheck = time.Minute
)

// pkiServer is the name that the signing service's certificate proves, at whatever host it is reached.
const pkiServer = "pki"

// ErrNotEnrolled means that there is neither a valid certificate nor a join token
// to obtain one.
var ErrNotEnrolled = errors.New("no valid certificate and no join token")

// IdentityOptions configure an Identity: its name, its directory and the signing service.
type IdentityOptions struct {
	// Dir holds identity.pem, the key and its certificate once issued, then that of its issuing CA; and, for a
	// server, crl.pem, the last revocation list. No other identity may use the
	// directory. Required.
	Dir string
	// Name is the expected common name; a certificate with another name is refused.
	// Required.
	Name Name
	// URL is the signing service's, https://host:port. Required.
	URL string
	// CAFile holds the certificates of the roots of the region's CA, one or several, which verify the
	// signing service and all peers until the signing service hands out others. Required.
	CAFile string
	// Token, or the content of TokenFile, is the join token. It is redeemed when the
	// certificate is missing, of another CA, revoked, or expired too long ago to be
	// renewed. TokenFile is removed once the certificate is on disk.
	Token     string
	TokenFile string
	// Logger logs renewals and failures; nil means slog.Default.
	Logger *slog.Logger

	dial func(ctx context.Context, network, addr string) (net.Conn, error) // tests set it
}

// An Identity is a process's key and certificate, kept valid by [Identity.Run].
// It is safe for concurrent use.
type Identity struct {
	o       IdentityOptions
	anchors []*x509.Certificate // the roots in CAFile
	trust   atomic.Pointer[trust]
	current atomic.Pointer[tls.Certificate]
	chain   atomic.Pointer[[]*x509.Certificate] // that of current
	guard   *guard                              // for clients of a server with this identity
	learn   sync.Mutex                          // held while the trust is changed
	wake    chan struct{}                       // wakes keepConfirmed
	renewal sync.Mutex                          // held while renewalFile is used
	refused atomic.Pointer[x509.Certificate]    // the last one that the CA refused for good; nil for none
}

// OpenIdentity loads the identity in Dir, or makes a key there and enrols. It renews
// an expired certificate within [RenewalGrace].
//
// The key is on disk before the request is sent, and the same key can redeem the
// token again, so a process that was killed at any point enrols after its restart.
// While the signing service does not answer, OpenIdentity retries until ctx is done.
// It returns an error at once when the service refuses, when a file is damaged, or
// when there is neither certificate nor token ([ErrNotEnrolled]).
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
	id := &Identity{o: o, guard: newGuard(), wake: make(chan struct{}, 1)}
	if err := id.loadAnchors(ctx); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := atomicfile.SweepTemp(o.Dir); err != nil {
		return nil, err
	}
	if err := id.loadTrust(); err != nil {
		return nil, err
	}
	if err := id.loadCRL(); err != nil {
		return nil, err
	}
	key, chain, err := id.load(identityFile)
	if err != nil {
		return nil, err
	}
	token, err := id.token()
	if err != nil {
		return nil, err
	}
	if len(chain) == 0 {
		return id, id.enrol(ctx, key, token, errors.New("there is no certificate yet"))
	}
	unusable := id.check(chain, time.Now())
	if unusable == nil || id.renewable(chain) {
		id.use(key, chain)
	}
	switch {
	case unusable == nil && token == "":
		return id, nil
	case id.current.Load() == nil:
		return id, id.enrolAnew(ctx, token, unusable)
	}
	// The certificate has expired; or it is valid and there is a join token, perhaps
	// because the certificate was revoked. Only the signing service knows that.
	for attempt := 0; ; attempt++ {
		refused := id.renewByCertificate(ctx)
		if refused == nil {
			return id, id.dropToken()
		}
		if r, ok := errors.AsType[*refusal](refused); ok && r.isFinal() {
			if token == "" {
				return nil, fmt.Errorf("renewing at %s: %w", o.URL, refused)
			}
			return id, id.enrolAnew(ctx, token, refused)
		}
		if unusable == nil {
			return id, nil // the token stays for the next start
		}
		o.Logger.LogAttrs(ctx, slog.LevelWarn, "renewal of an expired certificate will be tried again",
			slog.String("identity", string(o.Name)), slog.Any("error", refused))
		if !pause.For(ctx, backoff(attempt)) {
			return nil, fmt.Errorf("renewing at %s: %w", o.URL, errors.Join(ctx.Err(), refused))
		}
	}
}

// load reads a key and its certificate, with those that follow it, from a file. When the file is missing it creates
// it with a new key.
func (id *Identity) load(file string) (*ecdsa.PrivateKey, []*x509.Certificate, error) {
	path := filepath.Join(id.o.Dir, file)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		key, err := newKey()
		if err != nil {
			return nil, nil, err
		}
		if data, err = encodeKey(key); err == nil {
			err = atomicfile.Create(path, data, 0o600)
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
	key, chain, err := decodePair(data)
	if err != nil {
		return nil, nil, fmt.Errorf("identity file %s is damaged: %w; remove it and enrol with a new join token", path,
			err)
	}
	return key, chain, nil
}

// check returns an error when a certificate does not prove this identity at a time. chain is the certificate, then its
// issuing CA.
func (id *Identity) check(chain []*x509.Certificate, at time.Time) error {
	cert := chain[0]
	if cert.Subject.CommonName != string(id.o.Name) {
		return fmt.Errorf("the certificate is that of %q", cert.Subject.CommonName)
	}
	trusted := id.trust.Load()
	_, _, err := verifyClient(chain, trusted.pool, at)
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		err = fmt.Errorf("the certificate is not of the CA in %s but of %q: %w", id.o.CAFile, cert.Issuer.CommonName, err)
		if trusted.ignored != nil {
			err = fmt.Errorf("%w; %w; if this process shall stay in its region, write the region's present certificates "+
				"(ca.crt beside the CA) to %s", err, trusted.ignored, id.o.CAFile)
		}
		return err
	}
	return err
}

// renewable reports whether an expired certificate is within RenewalGrace. It may be
// revoked, which only the signing service knows.
func (id *Identity) renewable(chain []*x509.Certificate) bool {
	late := time.Since(chain[0].NotAfter)
	return late > 0 && late <= RenewalGrace && id.check(chain, chain[0].NotAfter) == nil
}

// save writes key and certificate, with its issuing CA, to disk as one file, and then uses them.
func (id *Identity) save(key *ecdsa.PrivateKey, chain []*x509.Certificate) error {
	data, err := encodeKey(key)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(id.o.Dir, identityFile), append(data, encodeChain(chain)...),
		0o600); err != nil {
		return err
	}
	if err := removeFile(id.o.Dir, pendingFile); err != nil {
		return err
	}
	id.use(key, chain)
	return nil
}

// removeFile removes a file of a directory; a missing one is no error.
func removeFile(dir, name string) error {
	if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// use makes key and certificate the present ones for new connections.
func (id *Identity) use(key *ecdsa.PrivateKey, chain []*x509.Certificate) {
	id.chain.Store(&chain)
	id.current.Store(newTLSCertificate(chain, key))
}

// enrolAnew enrols with a new key. The old key is never enrolled again, since it may
// be revoked; it stays on disk until the new certificate is there.
func (id *Identity) enrolAnew(ctx context.Context, token string, unusable error) error {
	if token == "" {
		return id.enrol(ctx, nil, token, unusable)
	}
	key, _, err := id.load(pendingFile)
	if err != nil {
		return err
	}
	return id.enrol(ctx, key, token, unusable)
}

// enrol requests a certificate for key with the join token, and retries until the
// service signs or refuses. unusable is the reason for which the present certificate
// cannot be used.
func (id *Identity) enrol(ctx context.Context, key *ecdsa.PrivateKey, token string, unusable error) error {
	if token == "" {
		return fmt.Errorf(
			"%w: %w; make a token with `atoll mc join-token` (`atoll pki token` for a service) and pass it",
			ErrNotEnrolled, unusable)
	}
	for attempt := 0; ; attempt++ {
		chain, err := id.requestCertificate(ctx, key, token)
		if err == nil {
			if err := errors.Join(id.save(key, chain), removeFile(id.o.Dir, renewalFile)); err != nil {
				return err
			}
			return id.dropToken()
		}
		if r, ok := errors.AsType[*refusal](err); ok && r.isFinal() {
			return fmt.Errorf("enrolling at %s: %w", id.o.URL, err)
		}
		id.o.Logger.LogAttrs(ctx, slog.LevelWarn, "enrolment will be tried again",
			slog.String("identity", string(id.o.Name)), slog.Any("error", err))
		if !pause.For(ctx, backoff(attempt)) {
			return fmt.Errorf("enrolling at %s: %w", id.o.URL, ctx.Err())
		}
	}
}

// Check is a readiness check: the certificate is valid now and not known as revoked, and
// a server has a fresh revocation list. A server knows of a revocation by the list, another
// process when the CA refuses its certificate.
func (id *Identity) Check(context.Context) error {
	chain := *id.chain.Load()
	return errors.Join(id.check(chain, time.Now()), id.guard.check(), id.checkRevoked(chain))
}

// checkRevoked returns an error when the certificate is revoked, as far as this process
// knows.
func (id *Identity) checkRevoked(chain []*x509.Certificate) error {
	if refused := id.refused.Load(); !id.guard.isRevoked(chain) && (refused == nil || !refused.Equal(chain[0])) {
		return nil
	}
	return fmt.Errorf("the certificate of %s is revoked, and others refuse it: find out why, pass a new join token "+
		"(`atoll pki token`, for an agent `atoll mc join-token`), and start the process again", id.o.Name)
}

// recordRefusal records that the CA refused cert, if err says that it is revoked or
// superseded.
func (id *Identity) recordRefusal(cert *x509.Certificate, err error) {
	if r, ok := errors.AsType[*refusal](err); ok && (r.code == codeRevoked || r.code == codeSuperseded) {
		id.refused.Store(cert)
	}
}

// Name returns the identity's name.
func (id *Identity) Name() Name { return id.o.Name }

// Certificate returns the present certificate.
func (id *Identity) Certificate() *x509.Certificate { return id.current.Load().Leaf }

// newTLSCertificate returns a key with its certificate and those that are sent along.
func newTLSCertificate(chain []*x509.Certificate, key *ecdsa.PrivateKey) *tls.Certificate {
	return &tls.Certificate{Certificate: rawChain(chain), PrivateKey: key, Leaf: chain[0]}
}
