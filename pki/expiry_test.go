package pki

import (
	"context"
	"errors"
	"log/slog"
	"math/big"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/internal/rest"
)

// bubbleCA runs a signing service inside a synctest bubble until the function
// that it returns is called. A request that waits for a revocation list looks for it every 5 s: virtual hours have
// too many of the looks of crlLook.
func bubbleCA(t *testing.T, ca *CA) (l *pipes, stop func()) {
	t.Helper()
	l = newPipes()
	quiet := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(context.Background())
	s := NewServer(ca)
	s.look = 5 * time.Second
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

// A process was away: a certificate renews until 24 h after its expiry; a revoked one never.
func TestI7AnExpiredCertificateRenewsFor24Hours(t *testing.T) {
	for name, c := range map[string]struct {
		sleep  time.Duration
		revoke bool
		want   string // in the error; "" when it renews
	}{
		"an hour":          {sleep: DefaultValidity + time.Hour},
		"24 hours, nearly": {sleep: DefaultValidity + RenewalGrace - time.Minute},
		"more": {sleep: DefaultValidity + RenewalGrace + time.Minute,
			want: "no valid certificate and no join token"},
		"an hour, revoked": {sleep: DefaultValidity + time.Hour, revoke: true, want: "revoked: "},
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
					if _, err := ca.Revoke("management-01", Command{}); err != nil {
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
		if _, err := ca.Revoke("management-01", Command{}); err != nil {
			t.Fatal(err)
		}
		knowCRL(t, ca, server)
		number := server.guard.listNumber()
		if news, err := server.acceptCRL(t.Context(), old); news || err != nil || server.guard.listNumber() != number {
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
		list, err := ca.firstList(data)
		have, _ := new(big.Int).SetString(number, 10)
		if err != nil || list.Number.Cmp(have) <= 0 {
			t.Errorf("number %v after %v: %v", list.Number, have, err)
		}
	})
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
		list, err := ca.firstList(data)
		if err == nil && (list.Number == nil || list.Number.Sign() < 0) {
			t.Errorf("taken: %+v", list)
		}
	})
}
