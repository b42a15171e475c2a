package pki

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"atoll.dev/internal/atomicfile"
)

const (
	// DefaultValidity is the life of a certificate.
	DefaultValidity = 7 * 24 * time.Hour

	// skew is the time by which NotBefore lies before the time of issue, for machines
	// whose clocks are behind the signer's.
	skew = 5 * time.Minute

	caValidity = 20 * 365 * 24 * time.Hour

	caFile     = "ca.pem"
	caCertFile = "ca.crt"
	tokenDir   = "tokens"
)

// A CA is a region's certificate authority in a directory of its own:
//
//	ca.pem   key and certificate of the root, 0600; without the key once it was taken away
//	ca-next.pem   the same of the next root, from [CA.PrepareRoot] to [CA.RetireRoot]
//	ca-cross.pem  the cross certificates by which each root vouches for the next one
//	issuing/ key and certificate of each issuing CA, and the roots' revocation lists, 0700
//	ca.crt   the certificates of the roots alone, for processes that must trust them
//	crl.pem  the revocation lists, for servers that must refuse revoked certificates
//	tokens/  one-time join tokens by the sha256 of their text, 0700
//	issued/  records of the issued certificates, by name, 0700
//	revoked/ records of the revoked certificates, by name, 0700
//	lines/   which key was renewed by which, by name, 0700
//	trusts/  who trusts the next root, and whose certificates are below it, by name, 0700
//	audit.jsonl  the alarms of this CA and the commands in its directory, for the region's audit, 0600
//
// The root signs issuing CAs, one for each [Role], and these sign everything else. The root of a region that an earlier
// atoll has made permits no issuing CAs, and signs everything itself.
//
// Any number of processes may have the same directory open. A CA is safe for
// concurrent use.
type CA struct {
	// Validity is the life of the certificates that the CA issues; zero means
	// [DefaultValidity]. Set it before the first use of the CA.
	Validity time.Duration

	dir   string
	known atomic.Pointer[caRoots] // what was read last, see roots
	mu    sync.Mutex              // held together with the lock file while the directory is changed
	crl   atomic.Pointer[crlCopy]

	syncDir func(dir string) error // atomicfile.SyncDir; tests replace it
}

// OpenCA opens the CA in dir, and creates it when dir has none. When several
// processes create it at once, one succeeds and the others open the same CA. A
// damaged file is an error that names it: only an operator may replace a CA.
func OpenCA(dir string) (*CA, error) {
	for _, sub := range []string{tokenDir, issuedDir, revokedDir, linesDir, trustsDir, issuingDir} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("opening CA %s: %w", dir, err)
		}
		if err := atomicfile.SweepTemp(filepath.Join(dir, sub)); err != nil {
			return nil, fmt.Errorf("opening CA %s: %w", dir, err)
		}
	}
	if err := atomicfile.SweepTemp(dir); err != nil {
		return nil, fmt.Errorf("opening CA %s: %w", dir, err)
	}
	if err := createRoot(dir); err != nil {
		return nil, fmt.Errorf("opening CA %s: %w", dir, err)
	}
	read, err := readRoots(dir)
	if err != nil {
		return nil, err
	}
	ca := &CA{dir: dir, syncDir: atomicfile.SyncDir}
	ca.known.Store(read)
	if err := ca.openIssuers(); err != nil {
		return nil, fmt.Errorf("opening CA %s: %w", dir, err)
	}
	if err := ca.sweepTokens(); err != nil {
		return nil, fmt.Errorf("opening CA %s: %w", dir, err)
	}
	return ca, nil
}

// createRoot makes a root in the directory of a CA that has none.
func createRoot(dir string) error {
	path := filepath.Join(dir, caFile)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, nextFile)); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, fmt.Errorf("file %s is missing, and there is a next root; restore it from a backup", path))
	}
	data, _, err := newRoot()
	if err == nil {
		err = atomicfile.Create(path, data, 0o600)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// openIssuers makes the issuing CAs that are missing, and publishes the roots.
func (ca *CA) openIssuers() error {
	unlock, err := ca.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return errors.Join(ca.publish(), ca.renewIssuers(time.Now()))
}

// newRoot makes a root: a key and a self-signed certificate. It returns them as the content of ca.pem, too.
func newRoot() ([]byte, rootPair, error) {
	key, err := newKey()
	if err != nil {
		return nil, rootPair{}, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, rootPair{}, err
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "Atoll region CA " + serial.Text(36)[:8]},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(caValidity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLen:            1, // issuing CAs, and no CAs below them
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return nil, rootPair{}, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, rootPair{}, err
	}
	data, err := encodeKey(key)
	return append(data, encodeCert(der)...), rootPair{key, cert}, err
}

// Sign issues a certificate for the key of a PEM certificate request. Subject,
// alternative names and usages depend only on name: a service's certificate is valid
// as a server's for its name, localhost and the loopback addresses, and as a client's;
// an agent's is valid as a client's only. Sign ignores everything else in the request. The
// answer is PEM: the certificate, then that of the issuing CA, if one has signed it. A peer
// needs both.
// It fails with [ErrRevoked] when the name is barred or the key was revoked.
func (ca *CA) Sign(csrPEM []byte, name Name) ([]byte, error) {
	return ca.sign(csrPEM, applicant{name: name, validity: ca.validity()})
}

// commandUnit is the organizational unit in the subject of the certificates of [CA.SignForCommand].
const commandUnit = "command"

// CommandValidity is the life of the certificates of [CA.SignForCommand].
const CommandValidity = 15 * time.Minute

// SignForCommand is [CA.Sign] for a command on the CA's machine: the certificate is valid
// for [CommandValidity] and cannot be renewed. The CA forgets it soon after its expiry, so the
// certificate itself says that it renews nothing: by commandUnit in its subject.
func (ca *CA) SignForCommand(csrPEM []byte, name Name) ([]byte, error) {
	return ca.sign(csrPEM, applicant{name: name, validity: min(CommandValidity, ca.validity()), unrenewable: true})
}

func (ca *CA) sign(csrPEM []byte, as applicant) ([]byte, error) {
	csr, err := parseCSR(csrPEM)
	if err != nil {
		return nil, fmt.Errorf("signing for %s: request %w", as.name, err)
	}
	_, chain, err := ca.grant(csr, func() (applicant, error) { return as, as.name.Validate() })
	if err != nil {
		return nil, fmt.Errorf("signing for %s: %w", as.name, err)
	}
	return encodeChain(chain), nil
}

// validity returns the life of a certificate.
func (ca *CA) validity() time.Duration {
	if ca.Validity == 0 {
		return DefaultValidity
	}
	return ca.Validity
}

// issue signs a certificate for a public key and its proven holder, and returns it with what its holder must send
// along. It writes no record; grant does.
func (ca *CA) issue(pub any, as applicant) ([]*x509.Certificate, error) {
	if err := as.name.Validate(); err != nil {
		return nil, err
	}
	signer, err := ca.issuerOf(roleOf(as.name), time.Now())
	if err != nil {
		return nil, err
	}
	return signer.sign(pub, as)
}

// sign signs a certificate for a public key and its holder.
func (signer issuer) sign(pub any, as applicant) ([]*x509.Certificate, error) {
	name := as.name
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: string(name)},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(as.validity),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	if as.unrenewable {
		tmpl.Subject.OrganizationalUnit = []string{commandUnit}
	}
	if tmpl.NotAfter.After(signer.cert.NotAfter) {
		tmpl.NotAfter = signer.cert.NotAfter
	}
	if name.IsService() {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		tmpl.DNSNames = []string{name.Service(), "localhost"}
		tmpl.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, signer.cert, pub, signer.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return signer.chainOf(leaf), nil
}
