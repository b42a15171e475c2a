package pki

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/internal/rest"
)

// listen serves TLS as id, and answers each line of a client with its name.
func listen(t *testing.T, id *Identity) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", id.ServerTLS(CertificateRequired))
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer conn.Close()
				line := make([]byte, 1)
				for {
					if _, err := conn.Read(line); err != nil {
						return
					}
					state := conn.(*tls.Conn).ConnectionState()
					name, err := PeerName(&state)
					if err != nil {
						return
					}
					conn.Write([]byte(name + "\n"))
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Wait()
	})
	return l.Addr().String()
}

// hangLimit is how long a test waits for a server. Only a hang exceeds it, on a machine under any load.
const hangLimit = 3 * time.Minute

// dial connects and exchanges a line, which a handshake alone does not prove.
func dial(t *testing.T, addr string, client *Identity) (*tls.Conn, error) {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, client.ClientTLS("broker"))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(hangLimit))
	if _, err := conn.Write([]byte("?")); err != nil {
		return nil, err
	}
	_, err = conn.Read(make([]byte, 100))
	return conn, err
}

func run(t *testing.T, id *Identity) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- id.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func open(t *testing.T, o IdentityOptions) *Identity {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	id, err := OpenIdentity(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A server disconnects a revoked client, which can neither connect again nor renew;
// other clients stay connected. A server that restarts while the CA is not reachable
// still refuses it.
func TestI7ARevokedClientIsDisconnectedAndRefused(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	options1 := options(t, ca, url, "system:broker")
	server := open(t, options1)
	addr := listen(t, server)
	if _, err := dial(t, addr, open(t, options(t, ca, url, "management-02"))); err == nil {
		t.Error("without a revocation list somebody was let in")
	}
	if server.Check(t.Context()) == nil {
		t.Error("a server that refuses every client is ready")
	}
	run(t, server)
	for server.Check(t.Context()) != nil {
		<-time.After(10 * time.Millisecond)
	}
	thief, honest := open(t, options(t, ca, url, "management-01")), open(t, options(t, ca, url, "management-02"))
	stolen, err := dial(t, addr, thief)
	if err != nil {
		t.Fatal(err)
	}
	stays, err := dial(t, addr, honest)
	if err != nil {
		t.Fatal(err)
	}

	beside, err := OpenCA(ca.dir) // as the command line does
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	rev, err := beside.Revoke("management-01", "stolen")
	if err != nil || len(rev.Certificates) != 1 || rev.Certificates[0].Fingerprint != derHash(thief.Certificate().Raw) {
		t.Fatalf("%+v %v", rev, err)
	}
	stolen.SetDeadline(begun.Add(time.Minute))
	if _, err := stolen.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the server does not close the connection of the revoked client: %v", err)
	}
	t.Logf("the server closed the connection after %s", time.Since(begun))
	if _, err := dial(t, addr, thief); err == nil {
		t.Error("the revoked one is let in again")
	}
	if err := thief.Renew(t.Context()); err == nil || !strings.Contains(err.Error(), "revoked: ") {
		t.Errorf("the revoked one renews: %v", err)
	}
	if _, err := stays.Write([]byte("?")); err != nil {
		t.Error(err)
	}
	if _, err := stays.Read(make([]byte, 100)); err != nil {
		t.Errorf("another was cut off: %v", err)
	}

	again := options1
	again.URL = "https://127.0.0.1:1" // the CA is away
	addr = listen(t, open(t, again))
	if _, err := dial(t, addr, thief); err == nil {
		t.Error("after a restart the revoked one is let in")
	}
	if _, err := dial(t, addr, honest); err != nil {
		t.Errorf("after a restart another is refused: %v", err)
	}
}

// After a revocation only `allow`, a new token and a new key lead back.
func TestI7ARevokedNameJoinsAgainAfterAllow(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	o := options(t, ca, url, "management-01")
	old := open(t, o)
	pending, err := ca.CreateToken("management-01", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if rev, err := ca.Revoke("management-01", ""); err != nil || rev.Tokens != 1 {
		t.Fatalf("%+v %v", rev, err)
	}
	if rev, err := ca.Revoke("management-01", ""); err != nil || len(rev.Certificates) != 1 || rev.Tokens != 0 {
		t.Errorf("revoked twice: %+v %v", rev, err)
	}
	if _, err := ca.CreateToken("management-01", time.Minute); !errors.Is(err, ErrRevoked) ||
		!strings.Contains(err.Error(), "atoll mc allow management-01") {
		t.Errorf("a token for a revoked name: %v", err)
	}
	key, _ := newKey()
	csr, _ := encodeCSR(key, "management-01")
	if _, err := ca.Sign(csr, "management-01"); !errors.Is(err, ErrRevoked) {
		t.Errorf("signed for a revoked name: %v", err)
	}
	if changed, err := ca.Allow("management-01"); !changed || err != nil {
		t.Fatal(changed, err)
	}
	if changed, err := ca.Allow("management-01"); changed || err != nil {
		t.Errorf("allowed twice: %v %v", changed, err)
	}
	if status, body := post(t, url, ca, nil, SignRequest{CSR: string(csr), Token: pending}); status != 403 ||
		!strings.Contains(body, "invalid-token") {
		t.Errorf("a token of before the revocation: %d %s", status, body)
	}
	if err := old.Renew(t.Context()); err == nil || !strings.Contains(err.Error(), "revoked: ") {
		t.Errorf("the old certificate renews: %v", err)
	}
	if Enrolled(ca.dir, o.Dir, o.Name) {
		t.Error("Enrolled is true for a revoked identity")
	}
	token, err := ca.CreateToken("management-01", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	oldKey, _ := encodeCSR(old.current.Load().PrivateKey.(*ecdsa.PrivateKey), "")
	if status, body := post(t, url, ca, nil, SignRequest{CSR: string(oldKey), Token: token}); status != 403 ||
		!strings.Contains(body, "revoked") {
		t.Errorf("the revoked key: %d %s", status, body)
	}
	// Its own side does as it should: it makes a new key.
	if token, err = ca.CreateToken("management-01", time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.TokenFile, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	back := open(t, o)
	if bytes.Equal(back.Certificate().RawSubjectPublicKeyInfo, old.Certificate().RawSubjectPublicKeyInfo) {
		t.Error("it came back with the revoked key")
	}
	if err := back.Renew(t.Context()); err != nil {
		t.Errorf("back, it cannot renew: %v", err)
	}
}

// While requests are signed concurrently, Revoke misses no certificate: after it has
// returned, the list has all signed certificates and no more are signed.
func TestI7NoCertificateEscapesARevocation(t *testing.T) {
	ca := openCA(t)
	var mu sync.Mutex
	given := map[string]bool{}
	var signers sync.WaitGroup
	for range 4 {
		other, err := OpenCA(ca.dir)
		if err != nil {
			t.Fatal(err)
		}
		signers.Go(func() {
			for {
				key, _ := newKey()
				csr, _ := encodeCSR(key, "")
				data, err := other.Sign(csr, "management-01")
				if errors.Is(err, ErrRevoked) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				given[parseCert(t, data).SerialNumber.String()] = true
				mu.Unlock()
			}
		})
	}
	for enough := false; !enough; {
		<-time.After(time.Millisecond)
		mu.Lock()
		enough = len(given) >= 20
		mu.Unlock()
	}
	if _, err := ca.Revoke("management-01", ""); err != nil {
		t.Fatal(err)
	}
	signers.Wait()
	_, list, err := ca.CRL()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.RevokedCertificateEntries {
		delete(given, e.SerialNumber.String())
	}
	if len(given) > 0 {
		t.Errorf("%d certificates are not on the list", len(given))
	}
}

// The next request for the list completes a Revoke that was killed after it had written
// the record.
func TestI12ARevocationSurvivesAKill(t *testing.T) {
	ca := openCA(t)
	key, _ := newKey()
	csr, _ := encodeCSR(key, "")
	data, err := ca.Sign(csr, "management-01")
	if err != nil {
		t.Fatal(err)
	}
	_, before, err := ca.CRL()
	if err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(ca.CRLFile())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Revoke("management-01", ""); err != nil {
		t.Fatal(err)
	}
	// The state after a kill between the two files.
	old := time.Now().Add(-time.Minute)
	if err := errors.Join(os.WriteFile(ca.CRLFile(), kept, 0o644), os.Chtimes(ca.CRLFile(), old, old)); err != nil {
		t.Fatal(err)
	}
	_, list, err := ca.CRL()
	if err != nil || list.Number.Cmp(before.Number) <= 0 || len(list.RevokedCertificateEntries) != 1 ||
		list.RevokedCertificateEntries[0].SerialNumber.Cmp(parseCert(t, data).SerialNumber) != 0 {
		t.Errorf("%+v %v", list, err)
	}
	// And a damaged list is no obstacle.
	if err := os.WriteFile(ca.CRLFile(), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, list, err = ca.CRL(); err != nil || len(list.RevokedCertificateEntries) != 1 {
		t.Errorf("%+v %v", list, err)
	}
}

// bubbleCA runs a signing service inside a synctest bubble until the function
// that it returns is called.
func bubbleCA(t *testing.T, ca *CA) (l *pipes, stop func()) {
	t.Helper()
	l = newPipes()
	quiet := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(context.Background())
	s := NewServer(ca)
	var running sync.WaitGroup
	running.Go(func() {
		if err := (&rest.Server{Name: "pki", Handler: s.Handler(quiet), TLS: s.TLS(), Log: quiet}).Run(
			ctx, l); err != nil {
			t.Error(err)
		}
	})
	return l, func() {
		cancel()
		running.Wait()
	}
}

func wait(d time.Duration) { <-time.NewTimer(d).C }

// A laptop slept: a certificate renews until 90 days after its expiry; a revoked one never.
func TestI7AnExpiredCertificateRenewsFor90Days(t *testing.T) {
	for name, c := range map[string]struct {
		sleep  time.Duration
		revoke bool
		want   string // in the error; "" when it renews
	}{
		"a month":         {sleep: DefaultValidity + 30*24*time.Hour},
		"90 days, nearly": {sleep: DefaultValidity + RenewalGrace - time.Minute},
		"more": {sleep: DefaultValidity + RenewalGrace + time.Minute,
			want: "no valid certificate and no join token"},
		"a month, revoked": {sleep: DefaultValidity + 30*24*time.Hour, revoke: true, want: "revoked: "},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ca := openCA(t)
				l, stop := bubbleCA(t, ca)
				defer stop()
				o := options(t, ca, "https://localhost:1", "management-01")
				o.dial = l.dial
				asleep := open(t, o)
				so := options(t, ca, "https://localhost:1", "system:broker")
				so.dial = l.dial
				wait(c.sleep)
				if c.revoke {
					if _, err := ca.Revoke("management-01", ""); err != nil {
						t.Fatal(err)
					}
				}
				// Everywhere else an expired certificate is worth nothing.
				if token, err := ca.CreateToken("system:broker", time.Minute); err != nil {
					t.Fatal(err)
				} else {
					so.Token, so.TokenFile = token, ""
				}
				server := open(t, so)
				knowCRL(t, ca, server)
				if _, err := handshake(t, server.ServerTLS(CertificateRequired), asleep.ClientTLS("broker")); err == nil {
					t.Error("an expired certificate is taken")
				}
				if Enrolled(ca.dir, o.Dir, o.Name) != (c.want == "") {
					t.Error("Enrolled says otherwise")
				}
				o.Logger = slog.New(slog.DiscardHandler)
				awake, err := OpenIdentity(t.Context(), o)
				if c.want != "" {
					if err == nil || !strings.Contains(err.Error(), c.want) {
						t.Errorf("error %v, want one with %q", err, c.want)
					}
					// The signing service decides, not the good will of the client.
					if err := asleep.Renew(t.Context()); err == nil {
						t.Error("it renewed")
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if peer, err := handshake(t, server.ServerTLS(CertificateRequired), awake.ClientTLS("broker")); err != nil ||
					peer != "management-01" {
					t.Errorf("renewed: %q %v", peer, err)
				}
			})
		})
	}
}

// A server admits clients by a list that its CA has signed, that is valid, and that is never
// replaced by an older one.
func TestI7OnlyAFreshListAdmitsClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, other := openCA(t), openCA(t)
		l, stop := bubbleCA(t, ca)
		defer stop()
		o := options(t, ca, "https://localhost:1", "system:broker")
		o.dial = l.dial
		server := open(t, o)
		strange, _, err := other.CRL()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := server.acceptCRL(t.Context(), strange); err == nil {
			t.Error("the list of another CA is taken")
		}
		old, _, err := ca.CRL()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ca.Revoke("management-01", ""); err != nil {
			t.Fatal(err)
		}
		knowCRL(t, ca, server)
		number := server.guard.number()
		if news, err := server.acceptCRL(t.Context(), old); news || err != nil || server.guard.number() != number {
			t.Errorf("an older list is taken: %v %v", news, err)
		}
		server.ServerTLS(CertificateRequired)
		wait(crlValidity - time.Minute)
		if err := server.guard.check(); err != nil {
			t.Errorf("shortly before its end: %v", err)
		}
		wait(2 * time.Minute)
		if err := server.guard.check(); !errors.Is(err, errNoCRL) {
			t.Errorf("after its end: %v", err)
		}
		// The clock of the CA steps back by a year: numbers go on.
		first := time.Now()
		ca.mu.Lock()
		data, err := ca.writeCRL(first.Add(-365 * 24 * time.Hour))
		ca.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		list, err := parseCRL(data)
		have, _ := new(big.Int).SetString(number, 10)
		if err != nil || list.Number.Cmp(have) <= 0 {
			t.Errorf("number %v after %v: %v", list.Number, have, err)
		}
	})
}

// An identity of another CA enrols again with a token; without one the error names the
// next step.
func TestAnIdentityOfAnotherCAEnrolsAgain(t *testing.T) {
	ca, other := openCA(t), openCA(t)
	o := options(t, other, serveCA(t, other), "management-01")
	before := open(t, o)
	o.URL, o.CAFile = serveCA(t, ca), ca.CertFile()
	if Enrolled(ca.dir, o.Dir, o.Name) {
		t.Error("Enrolled is true for an identity of another CA")
	}
	if _, err := OpenIdentity(t.Context(), o); !errors.Is(err, ErrNotEnrolled) || !strings.Contains(err.Error(),
		"not of the CA in "+o.CAFile) {
		t.Errorf("without a token: %v", err)
	}
	var err error
	if o.Token, err = ca.CreateToken("management-01", time.Minute); err != nil {
		t.Fatal(err)
	}
	after := open(t, o)
	if bytes.Equal(before.Certificate().RawSubjectPublicKeyInfo, after.Certificate().RawSubjectPublicKeyInfo) {
		t.Error("it kept its key")
	}
	o.Token = ""
	if again := open(t, o); !again.Certificate().Equal(after.Certificate()) {
		t.Error("it does not keep its new certificate")
	}
	if _, err := os.Stat(filepath.Join(o.Dir, pendingFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

// A mounted token, whose file cannot be removed, is used only once.
func TestAMountedTokenIsRedeemedOnce(t *testing.T) {
	ca := openCA(t)
	o := options(t, ca, serveCA(t, ca), "management-01")
	mounted, err := os.Open(o.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	defer mounted.Close()
	o.TokenFile = fmt.Sprintf("/proc/self/fd/%d", mounted.Fd())
	first := open(t, o)
	if _, err := os.ReadFile(o.TokenFile); err != nil {
		t.Skip("it can be removed here: ", err)
	}
	if again := open(t, o); !again.Certificate().Equal(first.Certificate()) {
		t.Error("each start takes a certificate")
	}
}

// PinCA accepts only the CA with the given fingerprint, and writes no other to disk.
func TestACAIsPinnedByItsFingerprint(t *testing.T) {
	ca, other := openCA(t), openCA(t)
	url := serveCA(t, ca)
	file := filepath.Join(t.TempDir(), "new", "ca.pem")
	for _, wrong := range []string{"", "sha256:", strings.ToUpper(Fingerprint(ca.cert)), Fingerprint(other.cert)} {
		if err := PinCA(t.Context(), url, wrong, file); err == nil {
			t.Errorf("%q is believed", wrong)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Fatal("a CA that was not believed is on disk")
	}
	for range 2 { // fetched, and then as it is
		if err := PinCA(t.Context(), url, Fingerprint(ca.cert), file); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(file); err != nil || !bytes.Equal(have, ca.CertPEM()) {
		t.Errorf("%q %v", have, err)
	}
	if err := PinCA(t.Context(), url, Fingerprint(other.cert), file); err == nil || !strings.Contains(err.Error(),
		file) {
		t.Errorf("a file of another CA: %v", err)
	}
	if err := PinCA(t.Context(), "http://localhost", Fingerprint(ca.cert), file+"2"); err == nil ||
		!strings.Contains(err.Error(), "not https") {
		t.Errorf("plain HTTP: %v", err)
	}
}

func TestClosedRecognizesClosedConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if closed(conn) {
		t.Error("closed is true for an open connection")
	}
	conn.Close()
	if !closed(conn) {
		t.Error("closed is false for a closed connection")
	}
}

func FuzzParseCRL(f *testing.F) {
	dir := f.TempDir()
	ca, err := OpenCA(dir)
	if err != nil {
		f.Fatal(err)
	}
	data, _, err := ca.CRL()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("-----BEGIN X509 CRL-----\n-----END X509 CRL-----"))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := parseCRL(data)
		if err == nil && (list.Number == nil || list.CheckSignatureFrom(ca.cert) == nil && list.Number.Sign() < 0) {
			t.Errorf("taken: %+v", list)
		}
	})
}
