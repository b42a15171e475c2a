package pki

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"atoll.dev/internal/atomicfile"
)

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
			short := openCAIn(t, ca.dir)
			short.Validity = -RenewalGrace - time.Second
			key, _ := newKey()
			chain, err := short.issue(&key.PublicKey, applicant{name: o.Name, validity: short.Validity})
			if err != nil {
				t.Fatal(err)
			}
			data, _ := encodeKey(key)
			if err := atomicfile.Write(filepath.Join(o.Dir, identityFile), append(data, encodeChain(chain)...),
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
