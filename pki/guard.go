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
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"atoll.dev/internal/atomicfile"
)

// maxCRL bounds a revocation list: about 40 bytes for each certificate.
const maxCRL = 16 << 20

// guard lets nobody with a revoked certificate in, and shows those out who are
// in when theirs is revoked.
type guard struct {
	serves chan struct{} // closed once there is something to guard
	once   sync.Once     // closes it

	mu      sync.Mutex
	list    *x509.RevocationList // nil until one is known
	revoked map[string]bool      // by serial number
	conns   map[net.Conn]string  // serial numbers of those who are in
	sweepAt int                  // the number of conns at which closed ones are looked for
}

// sweepMin is the least number of connections that is worth a sweep.
const sweepMin = 64

func newGuard() *guard {
	return &guard{serves: make(chan struct{}), conns: map[net.Conn]string{}, sweepAt: sweepMin}
}

// errNoCRL refuses everybody who shows a certificate: better a door that does
// not open than one that lets a thief in.
var errNoCRL = errors.New("no revocation list of the region's is known that is fresh enough")

func (g *guard) serve() { g.once.Do(func() { close(g.serves) }) }

// check says why nobody who shows a certificate would be let in.
func (g *guard) check() error {
	select {
	case <-g.serves:
	default:
		return nil // nothing is served
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fresh()
}

// fresh says why the list may not be used. The caller has the lock.
func (g *guard) fresh() error {
	switch {
	case g.list == nil:
		return errNoCRL
	case time.Now().After(g.list.NextUpdate):
		return fmt.Errorf("%w: the last one was good until %s; is atoll pki reachable?", errNoCRL,
			g.list.NextUpdate.UTC().Format(time.RFC3339))
	}
	return nil
}

// number is that of the list, "" when there is none.
func (g *guard) number() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.list == nil {
		return ""
	}
	return g.list.Number.String()
}

// admit decides on a client whose certificate TLS has verified, and remembers
// its connection.
func (g *guard) admit(conn net.Conn, leaf *x509.Certificate) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.fresh(); err != nil {
		return err
	}
	serial := leaf.SerialNumber.String()
	if g.revoked[serial] {
		return fmt.Errorf("the certificate of %q is revoked", leaf.Subject.CommonName)
	}
	if len(g.conns) >= g.sweepAt {
		for c := range g.conns {
			if closed(c) {
				delete(g.conns, c)
			}
		}
		g.sweepAt = max(sweepMin, 2*len(g.conns))
	}
	g.conns[conn] = serial
	return nil
}

// older reports whether what the guard has is older than list, or nothing.
func (g *guard) older(list *x509.RevocationList) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.list == nil || g.list.Number.Cmp(list.Number) < 0
}

// take replaces the list, cuts off those whose certificate is on the new one,
// and returns how many.
func (g *guard) take(list *x509.RevocationList) (cut int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list, g.revoked = list, make(map[string]bool, len(list.RevokedCertificateEntries))
	for _, e := range list.RevokedCertificateEntries {
		g.revoked[e.SerialNumber.String()] = true
	}
	for conn, serial := range g.conns {
		if !g.revoked[serial] {
			continue
		}
		delete(g.conns, conn)
		if !closed(conn) {
			conn.Close()
			cut++
		}
	}
	return cut
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

// ServerTLS returns the configuration of a server with this identity. Clients
// are verified against the region's CA and its revocation list; mutual says
// whether one without a certificate is refused. [PeerName] tells who it is.
// Renewals are picked up by the next connection.
//
// The list is kept fresh by [Identity.Run], and on disk for the next start.
// Without one, or with one that is over, nobody who shows a certificate gets
// in. A connection whose certificate is revoked is cut off.
func (id *Identity) ServerTLS(mutual bool) *tls.Config {
	id.guard.serve()
	auth := tls.VerifyClientCertIfGiven
	if mutual {
		auth = tls.RequireAndVerifyClientCert
	}
	base := &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: auth,
		ClientCAs:  id.roots,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return id.current.Load(), nil
		},
		// A resumed session would outlive a certificate's verification.
		SessionTicketsDisabled: true,
	}
	outer := base.Clone()
	outer.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c := base.Clone()
		// The protocols that the server speaks were added to a copy of outer that
		// cannot be seen here. Servers of ours speak what clients ask for.
		c.NextProtos = hello.SupportedProtos
		c.VerifyConnection = func(cs tls.ConnectionState) error {
			if len(cs.VerifiedChains) == 0 {
				return nil // it may have none
			}
			return id.guard.admit(hello.Conn, cs.VerifiedChains[0][0])
		}
		return c, nil
	}
	return outer
}

// followCRL keeps the revocation list of a server fresh until ctx is done.
func (id *Identity) followCRL(ctx context.Context) {
	select {
	case <-id.guard.serves:
	case <-ctx.Done():
		return
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: id.roots},
		DialContext: id.o.dial}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: crlWait + signTimeout}
	for attempt := 0; ; {
		var wait time.Duration
		news, err := id.fetchCRL(ctx, client)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			// Soon again: while there is no list, no revocation is noticed.
			wait = min(backoff(attempt), 2*time.Second)
			attempt++
			level := slog.LevelDebug
			if attempt%20 == 3 { // a restart is no news
				level = slog.LevelWarn
			}
			id.o.Logger.LogAttrs(ctx, level, "revocation list not refreshed, will be tried again",
				slog.Any("error", err))
		case !news:
			wait, attempt = time.Second, 0 // or an older list would be fetched as fast as it can
		default:
			attempt = 0
		}
		if pause(ctx, wait) != nil {
			return
		}
	}
}

// fetchCRL waits for a list that is newer than the one that is known, no longer
// than the signing service does, and reports whether there was one.
func (id *Identity) fetchCRL(ctx context.Context, client *http.Client) (news bool, err error) {
	target := strings.TrimSuffix(id.o.URL, "/") + "/v1/crl?after=" + url.QueryEscape(id.guard.number())
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
	return id.takeCRL(ctx, data)
}

// takeCRL puts a list on disk and into use if it is newer than the present one.
func (id *Identity) takeCRL(ctx context.Context, data []byte) (news bool, err error) {
	list, err := parseCRL(data)
	if err == nil {
		err = list.CheckSignatureFrom(id.ca)
	}
	if err != nil {
		return false, fmt.Errorf("reading the revocation list: %w", err)
	}
	if !id.guard.older(list) {
		return false, nil
	}
	// First on disk: what was cut off stays out after a kill, too.
	if err := atomicfile.Write(filepath.Join(id.o.Dir, crlFile), data, 0o600); err != nil {
		return false, err
	}
	cut := id.guard.take(list)
	if cut > 0 {
		id.o.Logger.LogAttrs(ctx, slog.LevelWarn, "connections cut off: their certificates are revoked",
			slog.Int("connections", cut))
	}
	return true, nil
}

// loadCRL takes up the list that an earlier start kept. One that is damaged or
// of another CA is as good as none.
func (id *Identity) loadCRL() error {
	data, err := os.ReadFile(filepath.Join(id.o.Dir, crlFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := id.takeCRL(context.Background(), data); err != nil {
		id.o.Logger.LogAttrs(context.Background(), slog.LevelWarn, "the kept revocation list is of no use",
			slog.Any("error", err))
	}
	return nil
}
