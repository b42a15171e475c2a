package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/pause"
)

// trustFile has the roots that the signing service has handed out last, and the cross certificates by which they
// follow from those in CAFile. A process has none until the region's root was rotated. An earlier atoll ignores it.
const trustFile = "roots.pem"

// loadAnchors reads the roots in CAFile. It waits for the file, which another starting process may be about to write.
func (id *Identity) loadAnchors(ctx context.Context) error {
	for attempt := 0; ; attempt++ {
		data, err := os.ReadFile(id.o.CAFile)
		if err == nil {
			if id.anchors, err = parseCertificates(data); err != nil {
				return fmt.Errorf("CA file %s %w; write the region's there", id.o.CAFile, err)
			}
			for _, c := range id.anchors {
				// A process that trusts an issuing CA as if it were the root would accept every name from it.
				if isIssuer(c) {
					return fmt.Errorf("CA file %s holds an issuing CA; write the root's certificate there (ca.crt beside the CA)",
						id.o.CAFile)
				}
			}
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) || !pause.For(ctx, backoff(attempt)) {
			return fmt.Errorf("reading the CA's certificate: %w", err)
		}
	}
}

// loadTrust uses the roots in trustFile, if they follow from those in CAFile, and else those in CAFile: an operator
// has given the process the roots of another region. A damaged trustFile is an error: after a rotation the region has
// none of the roots in CAFile any more. A wrong signature in it is no damage while the roots follow without it.
func (id *Identity) loadTrust() error {
	anchors := newTrust(id.anchors, nil)
	id.trust.Store(anchors)
	path := filepath.Join(id.o.Dir, trustFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	stored, damage := parseCertificates(data)
	if damage == nil && !bytes.Equal(encodeChain(stored), data) { // a cut file has whole certificates at its beginning
		damage = errors.New("holds something else than certificates")
	}
	if damage == nil {
		followed, err := anchors.follow(stored)
		if err == nil {
			id.trust.Store(followed)
			return nil
		}
		if damage = checkSignatures(stored, id.anchors); damage == nil {
			id.ignoreTrustFile(path, err)
			return nil
		}
	}
	return fmt.Errorf("file %s of the roots that this process trusts is damaged: %w; restore it from a backup, or "+
		"write the region's present certificates (ca.crt beside the CA) to %s and remove the damaged file", path, damage,
		id.o.CAFile)
}

// ignoreTrustFile uses the roots in CAFile. reason is why the roots in trustFile do not follow from them.
func (id *Identity) ignoreTrustFile(path string, reason error) {
	anchors := newTrust(id.anchors, nil)
	anchors.ignored = fmt.Errorf("the roots in %s are not used, because they do not follow from %s: %w", path,
		id.o.CAFile, reason)
	id.trust.Store(anchors)
	id.o.Logger.LogAttrs(context.Background(), slog.LevelWarn, "the roots on disk are not used, but those of the CA file",
		slog.String("file", path), slog.Any("error", reason))
}

// follow uses the roots that the signing service has handed out, from now on and after a restart. text is theirs and
// that of their cross certificates as PEM; "" is that of an earlier signing service, and changes nothing. own is the
// chain that this identity uses with them.
//
// It fails, and changes nothing, when a root that is trusted does not vouch for each of them, and when own is below
// none of them: then nobody would accept this process.
func (id *Identity) follow(ctx context.Context, text string, own []*x509.Certificate) error {
	if text == "" {
		return nil
	}
	id.learn.Lock()
	defer id.learn.Unlock()
	have := id.trust.Load()
	next, err := id.checkTrust(have, text, own)
	if err != nil {
		return fmt.Errorf("the roots from the signing service are not used: %w", err)
	}
	isSame := next.isSame(have)
	if isSame && have.ignored == nil {
		return nil
	}
	if err := atomicfile.Write(filepath.Join(id.o.Dir, trustFile), next.encode(), 0o600); err != nil {
		return err
	}
	id.trust.Store(next)
	if isSame { // only trustFile had others
		return nil
	}
	closedConns := id.guard.keepRoots(next.roots)
	id.o.Logger.LogAttrs(ctx, slog.LevelInfo, "the trusted roots have changed",
		slog.Any("roots", next.fingerprints()), slog.Int("closed_connections", closedConns))
	return nil
}

func (id *Identity) checkTrust(have *trust, text string, own []*x509.Certificate) (*trust, error) {
	certs, err := parseCertificates([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("the answer %w", err)
	}
	next, err := have.follow(certs)
	if err != nil {
		return nil, err
	}
	at := time.Now()
	if at.After(own[0].NotAfter) {
		at = own[0].NotAfter
	}
	if _, _, err := verifyClient(own, next.pool, at); err != nil {
		return nil, fmt.Errorf("the certificate of %s is below none of them: %w", id.o.Name, err)
	}
	return next, nil
}

// clientCertificate is the GetClientCertificate of this identity's connections.
func (id *Identity) clientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return id.current.Load(), nil
}

// ClientTLS returns the configuration of a client with this identity. The server must prove the given service's
// name, which must not be empty, by a certificate below one of the roots that the region trusts at the time of the
// connection. Open connections stay when a root is withdrawn.
func (id *Identity) ClientTLS(serverName string) *tls.Config {
	return id.clientTLS(serverName, id.clientCertificate, func([][]*x509.Certificate) error { return nil })
}

// signingServiceTLS returns the configuration of a client of the signing service, without a certificate. The server
// must prove the identity of the signing service.
func (id *Identity) signingServiceTLS() *tls.Config {
	return id.clientTLS(pkiServer, nil, func(chains [][]*x509.Certificate) error {
		name, err := provenName(chains)
		if err == nil && name != ServiceName(pkiServer) {
			err = fmt.Errorf("the server is %q, not the signing service", name)
		}
		return err
	})
}

// clientTLS returns the configuration of a client. A tls.Config has one pool of roots for its life; so package tls
// verifies nothing here, and VerifyConnection verifies what package tls would verify, with the present roots, and then
// calls check with the verified chains.
func (id *Identity) clientTLS(serverName string,
	certificate func(*tls.CertificateRequestInfo) (*tls.Certificate, error),
	check func(chains [][]*x509.Certificate) error) *tls.Config {
	verify := func(cs tls.ConnectionState) error {
		chains, err := verifyServer(cs.PeerCertificates, serverName, id.trust.Load().pool)
		if err == nil {
			err = check(chains)
		}
		if err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err}
		}
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, ServerName: serverName, GetClientCertificate: certificate,
		InsecureSkipVerify: true, VerifyConnection: verify}
}

// verifyServer verifies the certificates that a server has sent, and that they prove its name.
func verifyServer(sent []*x509.Certificate, name string, roots *x509.CertPool) ([][]*x509.Certificate, error) {
	if len(sent) == 0 || name == "" { // an empty name would be verified as any name
		return nil, errors.New("the server or its name is unknown")
	}
	between := x509.NewCertPool()
	for _, c := range sent[1:] {
		between.AddCert(c)
	}
	return sent[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: name,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
}
