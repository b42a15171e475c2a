package pki

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/internal/rest"
)

// pipes is a listener in memory: network I/O would keep a synctest bubble's
// clock from moving.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
	down  atomic.Bool
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if p.down.Load() {
		return nil, errors.New("the signing service is down")
	}
	mine, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return mine, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// In the time of 13 certificates' lives, with an outage of two sevenths of a life around a renewal, there is always a
// valid certificate. With the default of 7 days these are a quarter of a year and two days. Here a life is shorter,
// because the identity calls the signing service every 15 minutes anyway.
func TestAnIdentityIsRenewedWithoutAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const life = 168 * 2 * time.Minute
		ca := openCA(t)
		ca.Validity = life
		l := newPipes()
		quiet := slog.New(slog.DiscardHandler)
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() {
			s := NewServer(ca)
			if err := (&rest.Server{Name: "pki", Handler: s.Handler(quiet), TLS: s.TLS(), Log: quiet}).Run(
				ctx, l); err != nil {
				t.Error(err)
			}
		})
		o := options(t, ca, "https://localhost:1", "management-01")
		o.dial, o.Logger = l.dial, quiet
		id, err := OpenIdentity(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			if err := id.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		serials, keys := map[string]bool{}, map[string]bool{}
		for look := range 13 * 168 {
			l.down.Store(look >= 100 && look < 148)
			wait(life / 168)
			if err := id.Check(ctx); err != nil {
				t.Fatalf("after %s: %v", time.Duration(look+1)*life/168, err)
			}
			if name := id.Certificate().Subject.CommonName; name != "management-01" {
				t.Fatalf("renewed as %q", name)
			}
			hash, err := keyHash(id.Certificate().PublicKey)
			if err != nil {
				t.Fatal(err)
			}
			serials[id.Certificate().SerialNumber.String()], keys[hash] = true, true
		}
		// Two thirds of a life fit 19 times into 13 lives.
		if len(serials) < 18 || len(serials) > 21 || len(keys) != len(serials) {
			t.Errorf("%d certificates of %d keys", len(serials), len(keys))
		}
		cancel()
		running.Wait()
	})
}

// A new connection shows the renewed certificate, although the configuration is older.
func TestConfigurationsInUseServeARenewedCertificate(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	id, err := OpenIdentity(t.Context(), options(t, ca, url, "system:maestro"))
	if err != nil {
		t.Fatal(err)
	}
	knowCRL(t, ca, id)
	server, client := id.ServerTLS(CertificateRequired), id.ClientTLS("maestro")
	before := id.Certificate().SerialNumber
	if err := id.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if id.Certificate().SerialNumber.Cmp(before) == 0 {
		t.Fatal("not renewed")
	}
	shown, err := server.GetCertificate(nil)
	if err != nil || !bytes.Equal(shown.Certificate[0], id.Certificate().Raw) {
		t.Errorf("the server shows another certificate: %v", err)
	}
	if peer, err := handshake(t, server, client); err != nil || peer != "system:maestro" {
		t.Errorf("handshake: %q, %v", peer, err)
	}
}
