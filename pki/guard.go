package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/pause"
)

// maxCRL bounds the size of a revocation list, which has about 40 bytes for each
// certificate.
const maxCRL = 16 << 20

// guard refuses clients with a revoked certificate, and closes the connections of
// clients whose certificate is revoked later.
type guard struct {
	serving chan struct{} // closed when the identity first serves TLS
	once    sync.Once     // closes serving

	mu      sync.Mutex
	list    *x509.RevocationList // nil until a list was accepted
	issuers rootLists            // the roots' lists of revoked issuing CAs
	roots   []*x509.Certificate  // those that keepRoots has set last; nil until then
	revoked map[string]bool      // by serial number, of both lists
	conns   map[net.Conn]admitted
	sweepAt int // the number of conns at which admit removes closed ones
}

// serials are the serial numbers of a certificate and of its issuing CA, which is "" for none.
type serials [2]string

// serialsOf returns the serial numbers in a verified chain: without the root's, or in a chain as a process sends it.
func serialsOf(chain []*x509.Certificate) (of serials) {
	for i := range min(len(chain), len(of)) {
		of[i] = chain[i].SerialNumber.String()
	}
	return of
}

// admitted is by what a client was admitted.
type admitted struct {
	of   serials
	root *x509.Certificate // of its certificate
}

// sweepMin is the least sweepAt.
const sweepMin = 64

func newGuard() *guard {
	return &guard{serving: make(chan struct{}), conns: map[net.Conn]admitted{}, sweepAt: sweepMin}
}

// errNoCRL refuses every client with a certificate: without a fresh list a revoked
// certificate could not be recognized.
var errNoCRL = errors.New("no revocation list of the region's is known that is fresh enough")

// serve records that the identity serves TLS, so that it needs a revocation list.
func (g *guard) serve() { g.once.Do(func() { close(g.serving) }) }

// check returns the reason for which admit would refuse every client, or nil.
func (g *guard) check() error {
	select {
	case <-g.serving:
	default:
		return nil // the identity is not a server
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.checkList()
}

// checkList returns an error when there is no list or it is too old. The caller holds the
// lock.
func (g *guard) checkList() error {
	switch {
	case g.list == nil:
		return errNoCRL
	case time.Now().After(g.list.NextUpdate):
		return fmt.Errorf("%w: the last one was good until %s; is atoll pki reachable?", errNoCRL,
			g.list.NextUpdate.UTC().Format(time.RFC3339))
	}
	return nil
}

// isRevoked reports whether the lists have a certificate or its issuing CA.
func (g *guard) isRevoked(chain []*x509.Certificate) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.has(serialsOf(chain))
}

// has reports whether the lists have one of the serial numbers. The caller holds the lock.
func (g *guard) has(of serials) bool {
	return slices.ContainsFunc(of[:], func(serial string) bool { return g.revoked[serial] })
}

// listNumber returns the number of the list, "" when there is none.
func (g *guard) listNumber() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.list == nil {
		return ""
	}
	return g.list.Number.String()
}

// admit returns an error when a client must be refused whose chain TLS has
// verified, up to the root. Otherwise it records the connection, so that replace and keepRoots can close it.
func (g *guard) admit(conn net.Conn, chain []*x509.Certificate) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.checkList(); err != nil {
		return err
	}
	root := len(chain) - 1
	of := serialsOf(chain[:root])
	if g.roots != nil && !hasCert(g.roots, chain[root]) { // it was withdrawn during the handshake
		return fmt.Errorf("the root of the certificate of %q is not trusted any more", chain[0].Subject.CommonName)
	}
	if g.has(of) {
		return fmt.Errorf("the certificate of %q, or its issuing CA, is revoked", chain[0].Subject.CommonName)
	}
	if len(g.conns) >= g.sweepAt {
		for c := range g.conns {
			if closed(c) {
				delete(g.conns, c)
			}
		}
		g.sweepAt = max(sweepMin, 2*len(g.conns))
	}
	g.conns[conn] = admitted{of, chain[root]}
	return nil
}

// checkIssuers returns an error when the list of a root is older than that of the guard.
func (g *guard) checkIssuers(lists rootLists) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for root, list := range lists {
		if known := g.issuers[root]; known != nil && list.Number.Cmp(known.Number) < 0 {
			return errors.New("its list of revoked issuing CAs is older than the one that is known")
		}
	}
	return nil
}

// isOlderThan reports whether the guard has no list, or one older than list.
func (g *guard) isOlderThan(list *x509.RevocationList) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.list == nil || g.list.Number.Cmp(list.Number) < 0
}

// replace replaces the lists, closes the connections whose certificate, or its issuing
// CA, is on a new list, and returns their number.
func (g *guard) replace(list *x509.RevocationList, issuers rootLists) (closedConns int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list, g.issuers, g.revoked = list, issuers, make(map[string]bool, len(list.RevokedCertificateEntries))
	for _, l := range append(slices.Collect(maps.Values(issuers)), list) {
		for _, e := range l.RevokedCertificateEntries {
			g.revoked[e.SerialNumber.String()] = true
		}
	}
	return g.closeConns(func(a admitted) bool { return g.has(a.of) })
}

// keepRoots refuses and closes connections whose certificate is below no root of these. It returns the number of those
// that it closed.
func (g *guard) keepRoots(roots []*x509.Certificate) (closedConns int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.roots = roots
	return g.closeConns(func(a admitted) bool { return !hasCert(roots, a.root) })
}

// closeConns closes the connections that choose selects, and returns their number. The caller holds the lock.
func (g *guard) closeConns(choose func(admitted) bool) (closedConns int) {
	for conn, a := range g.conns {
		if !choose(a) {
			continue
		}
		delete(g.conns, conn)
		if !closed(conn) {
			conn.Close()
			closedConns++
		}
	}
	return closedConns
}

// closed reports whether this side has closed a connection.
func closed(conn net.Conn) bool {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	return raw.Control(func(uintptr) {}) != nil
}

// ClientCertificate is whether a server requires a certificate of its clients.
type ClientCertificate uint8

// Rules about the certificates of clients.
const (
	CertificateRequired ClientCertificate = iota // a client without one is refused
	CertificateOptional                          // a client without one must be identified otherwise
)

// ServerTLS returns the configuration of a server with this identity. It verifies
// certificates of clients against the roots that the region trusts and its revocation lists,
// and refuses a client whose issuing CA may not sign its name. [PeerName] returns a
// client's identity. New connections use a renewed certificate, and the present roots.
//
// [Identity.Run] keeps the list fresh, and on disk for the next start. Without a
// list, or with an expired one, the server refuses every client with a certificate.
// It closes the connections of clients whose certificate is revoked.
func (id *Identity) ServerTLS(rule ClientCertificate) *tls.Config {
	id.guard.serve()
	auth := tls.RequireAndVerifyClientCert
	if rule == CertificateOptional {
		auth = tls.VerifyClientCertIfGiven
	}
	base := &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: auth,
		ClientCAs:  id.trust.Load().pool,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return id.current.Load(), nil
		},
		// A resumed session would skip the verification of the certificate.
		SessionTicketsDisabled: true,
	}
	outer := base.Clone()
	outer.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c := base.Clone()
		c.ClientCAs = id.trust.Load().pool
		// net/http adds its protocols to its own copy of outer, not to base. Our servers
		// speak all protocols that our clients offer.
		c.NextProtos = hello.SupportedProtos
		c.VerifyConnection = func(cs tls.ConnectionState) error {
			if len(cs.VerifiedChains) == 0 {
				return nil // only CertificateOptional comes here
			}
			if _, err := PeerName(&cs); err != nil {
				return err
			}
			return id.guard.admit(hello.Conn, cs.VerifiedChains[0])
		}
		return c, nil
	}
	return outer
}

// followCRL keeps the revocation list of a server fresh until ctx is done.
func (id *Identity) followCRL(ctx context.Context) {
	select {
	case <-id.guard.serving:
	case <-ctx.Done():
		return
	}
	transport := &http.Transport{TLSClientConfig: id.signingServiceTLS(), DialContext: id.o.dial}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: crlWait + signTimeout}
	for attempt := 0; ; {
		var wait time.Duration
		accepted, err := id.fetchCRL(ctx, client)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			// The list may be of roots that the CA has since added or withdrawn. When that is not so, the confirmations of
			// every 15 minutes go on.
			if errors.Is(err, errBadList) && attempt < 3 {
				id.wakeConfirm()
			}
			// The pause is short: until the next list, revocations are not noticed.
			wait = min(backoff(attempt), 2*time.Second)
			attempt++
			level := slog.LevelDebug
			if attempt%20 == 3 { // a restart of the signing service is no warning
				level = slog.LevelWarn
			}
			id.o.Logger.LogAttrs(ctx, level, "revocation list not refreshed, will be tried again",
				slog.Any("error", err))
		case !accepted:
			wait, attempt = time.Second, 0 // without a pause an older list would be fetched in a busy loop
		default:
			attempt = 0
		}
		if !pause.For(ctx, wait) {
			return
		}
	}
}

// fetchCRL asks the signing service for a list newer than the present one, waits for the
// answer, and reports whether a newer list was accepted.
func (id *Identity) fetchCRL(ctx context.Context, client *http.Client) (accepted bool, err error) {
	target := strings.TrimSuffix(id.o.URL, "/") + "/v1/crl?after=" + url.QueryEscape(id.guard.listNumber())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return false, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxCRL))
	if err != nil {
		return false, err
	}
	if resp.StatusCode != http.StatusOK {
		return false, decodeRefusal(resp.StatusCode, data)
	}
	return id.acceptCRL(ctx, data)
}

// errBadList means that revocation lists are no lists of the region, or older than those that are known.
var errBadList = errors.New("reading the revocation list")

// acceptCRL writes lists to disk and uses them, if they are newer than the present ones and
// signed by the CA. It reports whether it did.
func (id *Identity) acceptCRL(ctx context.Context, data []byte) (accepted bool, err error) {
	var list *x509.RevocationList
	var issuers rootLists
	lists, err := parseCRL(data)
	if err == nil {
		list, issuers, err = lists.verify(id.trust.Load().roots, time.Now())
	}
	if err == nil {
		err = id.guard.checkIssuers(issuers)
	}
	if err != nil {
		return false, fmt.Errorf("%w: %w", errBadList, err)
	}
	if !id.guard.isOlderThan(list) {
		return false, nil
	}
	// Disk first: a client that was disconnected stays refused after a kill and restart.
	if err := atomicfile.Write(filepath.Join(id.o.Dir, crlFile), data, 0o600); err != nil {
		return false, err
	}
	closedConns := id.guard.replace(list, issuers)
	if closedConns > 0 {
		id.o.Logger.LogAttrs(ctx, slog.LevelWarn, "connections cut off: their certificates are revoked",
			slog.Int("connections", closedConns))
	}
	return true, nil
}

// loadCRL uses the list that an earlier process kept on disk. It ignores a missing list,
// a damaged one and a list of another CA.
func (id *Identity) loadCRL() error {
	data, err := os.ReadFile(filepath.Join(id.o.Dir, crlFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := id.acceptCRL(context.Background(), data); err != nil {
		id.o.Logger.LogAttrs(context.Background(), slog.LevelWarn, "the revocation list on disk cannot be used",
			slog.Any("error", err))
	}
	return nil
}
