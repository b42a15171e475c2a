package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/rest"
)

func options(t *testing.T, ca *CA, url string, name Name) IdentityOptions {
	t.Helper()
	dir := t.TempDir()
	token, err := ca.CreateToken(name, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return IdentityOptions{Dir: dir, Name: name, URL: url, CAFile: ca.CertFile(), TokenFile: file}
}

func TestAnIdentityEnrolsOnceAndIsVerifiedBothWays(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	server, err := OpenIdentity(t.Context(), options(t, ca, url, "system:maestro"))
	if err != nil {
		t.Fatal(err)
	}
	o := options(t, ca, url, "management-01")
	agent, err := OpenIdentity(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(o.TokenFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the used token is still there: %v", err)
	}
	if !Enrolled(ca.dir, o.Dir, o.Name) {
		t.Error("Enrolled is false for an enrolled directory")
	}
	if again, err := OpenIdentity(t.Context(), o); err != nil || !bytes.Equal(again.current.Load().Certificate[0],
		agent.current.Load().Certificate[0]) {
		t.Errorf("opened again: %v", err)
	}

	knowCRL(t, ca, server)
	knowCRL(t, ca, agent)
	peer, err := handshake(t, server.ServerTLS(CertificateRequired), agent.ClientTLS("maestro"))
	if err != nil || peer != "management-01" {
		t.Errorf("handshake: peer %q, %v", peer, err)
	}
	if _, err := handshake(t, server.ServerTLS(CertificateRequired), agent.ClientTLS("platform")); err == nil {
		t.Error("a client that wants platform is content with maestro")
	}
	if _, err := handshake(t, agent.ServerTLS(CertificateRequired), server.ClientTLS("maestro")); err == nil {
		t.Error("an agent's certificate serves")
	}
	other := openCA(t)
	stranger, err := OpenIdentity(t.Context(), options(t, other, serveCA(t, other), "system:maestro"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := handshake(t, server.ServerTLS(CertificateRequired), stranger.ClientTLS("maestro")); err == nil {
		t.Error("a certificate of another CA is taken")
	}
}

// knowCRL gives a server the present revocation list, as its Run would.
func knowCRL(t *testing.T, ca *CA, id *Identity) {
	t.Helper()
	data, _, err := ca.CRL()
	if err == nil {
		_, err = id.acceptCRL(t.Context(), data)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// handshake connects the two configurations and returns the client's name as the server
// sees it.
func handshake(t *testing.T, server, client *tls.Config) (Name, error) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	type seen struct {
		name Name
		err  error
	}
	result := make(chan seen, 1)
	go func() {
		conn := tls.Server(a, server)
		err := conn.Handshake()
		if err != nil {
			a.Close()
			result <- seen{err: err}
			return
		}
		state := conn.ConnectionState()
		name, err := PeerName(&state)
		conn.Write([]byte{1})
		result <- seen{name, err}
	}()
	conn := tls.Client(b, client)
	err := conn.Handshake()
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
	} else {
		b.Close()
	}
	s := <-result
	return s.name, errors.Join(err, s.err)
}

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

// In a virtual quarter of a year, with an outage of two days, every hour has a valid certificate.
func TestAnIdentityIsRenewedWithoutAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := openCA(t)
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
		for hour := range 90 * 24 {
			l.down.Store(hour >= 100 && hour < 148)
			timer := time.NewTimer(time.Hour)
			<-timer.C
			if err := id.Check(ctx); err != nil {
				t.Fatalf("after %d hours: %v", hour+1, err)
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
		// Two thirds of a week fit 19 times into 90 days.
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

// A process that is killed at any point of its enrolment enrols when it is
// started again, with the token that it has.
func TestI12EnrolmentSurvivesAKillAtAnyPoint(t *testing.T) {
	ca := openCA(t)
	for _, point := range []string{"before the request", "before the answer", "after the certificate was saved"} {
		t.Run(point, func(t *testing.T) {
			ctx, kill := context.WithCancel(t.Context())
			s := NewServer(ca)
			inner := s.Handler(slog.New(slog.DiscardHandler))
			var calls atomic.Int32
			url := serve(t, s, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if calls.Add(1) == 1 && point != "after the certificate was saved" {
					if point == "before the answer" {
						inner.ServeHTTP(httptest.NewRecorder(), r) // redeems
					}
					kill()
					panic(http.ErrAbortHandler)
				}
				inner.ServeHTTP(w, r)
			}))
			o := options(t, ca, url, "management-01")
			token, err := os.ReadFile(o.TokenFile)
			if err != nil {
				t.Fatal(err)
			}
			o.Logger = slog.New(slog.DiscardHandler)
			_, err = OpenIdentity(ctx, o)
			if point == "after the certificate was saved" {
				if err != nil {
					t.Fatal(err)
				}
				// Killed before it removed the token.
				if err := os.WriteFile(o.TokenFile, token, 0o600); err != nil {
					t.Fatal(err)
				}
			} else if !errors.Is(err, context.Canceled) {
				t.Fatalf("the killed one: %v", err)
			}
			if _, err := os.Stat(o.TokenFile); err != nil {
				t.Fatalf("the token is gone before the certificate is there: %v", err)
			}
			if _, err := OpenIdentity(t.Context(), o); err != nil {
				t.Errorf("started again: %v", err)
			}
			if _, err := os.Stat(o.TokenFile); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the used token is still there: %v", err)
			}
			kill()
		})
	}
}

func TestAnUnusableIdentityIsAnErrorWithTheReason(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	enrolled := func(t *testing.T) IdentityOptions {
		o := options(t, ca, url, "management-01")
		o.Logger = slog.New(slog.DiscardHandler)
		if _, err := OpenIdentity(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	for name, c := range map[string]struct {
		change func(t *testing.T, o *IdentityOptions)
		want   string
	}{
		"cut file": {func(t *testing.T, o *IdentityOptions) {
			path := filepath.Join(o.Dir, identityFile)
			data, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, data[:len(data)-100], 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, identityFile + " is damaged"},
		"another's name": {func(_ *testing.T, o *IdentityOptions) { o.Name = "management-02" },
			`that of "management-01"`},
		"another CA": {func(t *testing.T, o *IdentityOptions) { o.CAFile = openCA(t).CertFile() }, "unknown authority"},
		"expired": {func(t *testing.T, o *IdentityOptions) {
			short := &CA{Validity: -RenewalGrace - time.Second, dir: ca.dir, key: ca.key, cert: ca.cert}
			key, _ := newKey()
			der, err := short.issue(&key.PublicKey, o.Name)
			if err != nil {
				t.Fatal(err)
			}
			data, _ := encodeKey(key)
			if err := atomicfile.Write(filepath.Join(o.Dir, identityFile), append(data, encodeCert(der)...),
				0o600); err != nil {
				t.Fatal(err)
			}
			if Enrolled(ca.dir, o.Dir, o.Name) {
				t.Error("an expired certificate is accepted")
			}
		}, "expired"},
		"another's token": {func(t *testing.T, o *IdentityOptions) {
			token, err := ca.CreateToken("management-03", time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			o.Dir, o.Token = t.TempDir(), token
		}, `that of "management-03"`},
		"an unknown token": {func(t *testing.T, o *IdentityOptions) { o.Dir, o.Token = t.TempDir(), "x" },
			"token is unknown"},
		"no token": {func(t *testing.T, o *IdentityOptions) { o.Dir = t.TempDir() }, ErrNotEnrolled.Error()},
		"plain HTTP": {func(t *testing.T, o *IdentityOptions) {
			o.Dir, o.Token, o.URL = t.TempDir(), "x",
				"http://localhost"
		}, "not https"},
		"no such name": {func(_ *testing.T, o *IdentityOptions) { o.Name = "system:" }, "is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			o := enrolled(t)
			c.change(t, &o)
			_, err := OpenIdentity(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), o.Dir) {
				t.Errorf("error %v, want one with %q and %s", err, c.want, o.Dir)
			}
		})
	}
}

func TestTheSigningServiceMayStartLater(t *testing.T) {
	ca := openCA(t)
	var up atomic.Bool
	s := NewServer(ca)
	inner := s.Handler(slog.New(slog.DiscardHandler))
	url := serve(t, s, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !up.Swap(true) {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	o := options(t, ca, url, "system:maestro")
	o.Logger = slog.New(slog.DiscardHandler)
	if _, err := OpenIdentity(t.Context(), o); err != nil {
		t.Error(err)
	}
}

func TestOnlyTheOwnerReadsFiles(t *testing.T) {
	ca := openCA(t)
	o := options(t, ca, serveCA(t, ca), "management-01")
	if _, err := ca.CreateToken("management-02", time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenIdentity(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{o.Dir, ca.dir} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Base(path) == caCertFile {
				return err
			}
			info, err := d.Info()
			if err == nil && info.Mode().Perm() != 0o600 {
				err = fmt.Errorf("%s has mode %v", path, info.Mode())
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
