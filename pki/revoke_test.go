package pki

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
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
	rev, err := beside.Revoke("management-01", Command{Reason: "stolen"})
	if err != nil || len(rev.Certificates) != 1 || rev.Certificates[0].Fingerprint != derHash(thief.Certificate().Raw) {
		t.Fatalf("%+v %v", rev, err)
	}
	stolen.SetDeadline(begun.Add(3 * time.Minute))
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
	if rev, err := ca.Revoke("management-01", Command{}); err != nil || rev.Tokens != 1 {
		t.Fatalf("%+v %v", rev, err)
	}
	if rev, err := ca.Revoke("management-01", Command{}); err != nil || len(rev.Certificates) != 1 || rev.Tokens != 0 {
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
	if changed, err := ca.Allow("management-01", Command{}); !changed || err != nil {
		t.Fatal(changed, err)
	}
	if changed, err := ca.Allow("management-01", Command{}); changed || err != nil {
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
	if _, err := ca.Revoke("management-01", Command{}); err != nil {
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
	if _, err := ca.Revoke("management-01", Command{}); err != nil {
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

// A process whose own certificate is revoked is not ready, and says why: a server by the list, another one when the CA
// refuses its renewal. With a certificate of a new line it is ready again.
func TestI7ARevokedProcessIsNotReady(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	server, agent := open(t, options(t, ca, url, "system:broker")), open(t, options(t, ca, url, "management-01"))
	listen(t, server)
	run(t, server)
	wait := func(id *Identity, want string) {
		t.Helper()
		for end := time.Now().Add(hangLimit); ; <-time.After(10 * time.Millisecond) {
			err := id.Check(t.Context())
			if want == "" && err == nil || want != "" && err != nil && strings.Contains(err.Error(), want) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %v, want %q", id.Name(), err, want)
			}
		}
	}
	wait(server, "")
	for _, name := range []Name{"system:broker", "management-01"} {
		if _, err := ca.Revoke(name, Command{Reason: "stolen"}); err != nil {
			t.Fatal(err)
		}
	}
	wait(server, "the certificate of system:broker is revoked")
	wait(agent, "") // it does not know yet
	if err := agent.Renew(t.Context()); err == nil {
		t.Fatal("a revoked certificate was renewed")
	}
	wait(agent, "the certificate of management-01 is revoked")
	if _, err := ca.Allow("management-01", Command{}); err != nil {
		t.Fatal(err)
	}
	token, err := ca.CreateToken("management-01", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(agent.o.TokenFile, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := agent.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait(agent, "")
}
