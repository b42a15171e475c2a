package pki

import (
	"bytes"
	"crypto/ecdsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"atoll.dev/api/audit"
)

// steal returns an identity with a copy of the files of another, as of now.
func steal(t *testing.T, o IdentityOptions) *Identity {
	t.Helper()
	dir := t.TempDir()
	data, err := os.ReadFile(filepath.Join(o.Dir, identityFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, identityFile), data, 0o600); err != nil {
		t.Fatal(err)
	}
	o.Dir, o.TokenFile = dir, ""
	return open(t, o)
}

// alarms returns the value of the metric of alarms.
func alarms(t *testing.T, s *Server) float64 {
	t.Helper()
	var m dto.Metric
	if err := s.superseded.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// getAudit reads the audit of a signing service with a certificate.
func getAudit(t *testing.T, url string, id *Identity, after string) (int, audit.Page) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: id.ClientTLS("pki"), DisableKeepAlives: true}}
	resp, err := client.Get(url + "/v1/audit?after=" + after)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var page audit.Page
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(data, &page); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode, page
}

// A thief who copied a certificate, and its holder, both renew, in any order. The CA revokes the line of both as soon
// as it sees the second use, and says so in the log, in a metric and in the audit.
func TestI7ASupersededCertificateRevokesItsLine(t *testing.T) {
	for name, use := range map[string]func(t *testing.T, honest, thief *Identity) error{
		"the holder renews and confirms, the thief renews": func(t *testing.T, honest, thief *Identity) error {
			if err := errors.Join(honest.Renew(t.Context()), confirm(t, honest)); err != nil {
				t.Fatal(err)
			}
			return thief.Renew(t.Context())
		},
		"the holder renews twice without a word, the thief renews": func(t *testing.T, honest, thief *Identity) error {
			if err := errors.Join(honest.Renew(t.Context()), honest.Renew(t.Context())); err != nil {
				t.Fatal(err)
			}
			return thief.Renew(t.Context())
		},
		"the thief renews and confirms, the holder renews": func(t *testing.T, honest, thief *Identity) error {
			if err := errors.Join(thief.Renew(t.Context()), confirm(t, thief)); err != nil {
				t.Fatal(err)
			}
			return honest.Renew(t.Context())
		},
		"both renew, the holder confirms, the thief confirms": func(t *testing.T, honest, thief *Identity) error {
			if err := errors.Join(thief.Renew(t.Context()), honest.Renew(t.Context()),
				confirm(t, honest)); err != nil {
				t.Fatal(err)
			}
			return thief.Renew(t.Context()) // it was requested beside the holder's, and revoked unused
		},
	} {
		t.Run(name, func(t *testing.T) {
			ca := openCA(t)
			s := NewServer(ca)
			var log bytes.Buffer
			url := serve(t, s, s.Handler(slog.New(slog.NewTextHandler(&log, nil))))
			o := options(t, ca, url, "management-01")
			honest := open(t, o)
			thief := steal(t, o)
			other := open(t, options(t, ca, url, "management-01")) // by another token: another line
			platform := open(t, options(t, ca, url, "system:platform"))
			err := use(t, honest, thief)
			if err == nil || !strings.Contains(err.Error(), "superseded: ") {
				t.Fatalf("error %v", err)
			}
			for who, id := range map[string]*Identity{"the holder": honest, "the thief": thief} {
				if err := id.Renew(t.Context()); err == nil || !strings.Contains(err.Error(), "revoked: ") {
					t.Errorf("%s renews: %v", who, err)
				}
			}
			_, list, err := ca.CRL()
			if err != nil || len(list.RevokedCertificateEntries) < 2 {
				t.Errorf("the list has %v, %v", list, err)
			}
			if err := other.Renew(t.Context()); err != nil {
				t.Errorf("another line of the name: %v", err)
			}
			if _, err := ca.CreateToken("management-01", time.Minute); err != nil {
				t.Errorf("the name is barred: %v", err)
			}
			if n := alarms(t, s); n != 1 {
				t.Errorf("the metric is %v", n)
			}
			if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "identity=management-01") {
				t.Errorf("log:\n%s", log.String())
			}
			status, page := getAudit(t, url, platform, "")
			if status != http.StatusOK || len(page.Items) != 1 || page.Next != fmt.Sprint(cursorAt(t, ca, 1)) ||
				page.Items[0].Principal != "management-01" || page.Items[0].Key == "" {
				t.Errorf("audit: %d %+v", status, page)
			}
			if status, page = getAudit(t, url, platform, page.Next); status != http.StatusOK || len(page.Items) != 0 {
				t.Errorf("after it: %d %+v", status, page)
			}
			if status, _ = getAudit(t, url, platform, "7"); status != http.StatusGone {
				t.Errorf("a cursor of another CA: %d", status)
			}
			if status, _ = getAudit(t, url, other, ""); status != http.StatusForbidden {
				t.Errorf("an agent reads the audit: %d", status)
			}
		})
	}
}

// Lost answers, killed clients, and repeated requests are no alarm.
func TestI12ALostRenewalIsNoAlarm(t *testing.T) {
	ca := openCA(t)
	s := NewServer(ca)
	url := serve(t, s, s.Handler(slog.New(slog.DiscardHandler)))
	o := options(t, ca, url, "management-01")
	id := open(t, o)
	for range 3 {
		// The answer is lost, and the process killed: the request was executed.
		key, err := id.nextKey()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := id.requestCertificate(t.Context(), key, ""); err != nil {
			t.Fatal(err)
		}
		id = open(t, o)
		if err := id.Renew(t.Context()); err != nil {
			t.Fatalf("after a lost answer: %v", err)
		}
		if err := confirm(t, id); err != nil {
			t.Fatal(err)
		}
	}
	// The request arrives once more, late.
	before := steal(t, o)
	key, err := id.nextKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(id.Renew(t.Context()), confirm(t, id)); err != nil {
		t.Fatal(err)
	}
	if _, err := before.requestCertificate(t.Context(), key, ""); err != nil {
		t.Errorf("a repeated request: %v", err)
	}
	// An agent of an earlier version makes a new key for each try, and confirms nothing.
	for range 2 {
		key, _ := newKey()
		if _, err := id.requestCertificate(t.Context(), key, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(id.Renew(t.Context()), id.Renew(t.Context())); err != nil {
		t.Errorf("an earlier version's renewals: %v", err)
	}
	if n := alarms(t, s); n != 0 {
		t.Errorf("%v alarms", n)
	}
	if !Enrolled(ca.dir, o.Dir, o.Name) {
		t.Error("Enrolled is false")
	}
}

// Two hold a key, both renew, and the thief is the first who confirms. The holder's certificate was revoked unused by
// that; as the holder uses it nevertheless, the CA knows of two, and the thief does not keep the line.
func TestI7AThiefWhoConfirmsFirstDoesNotKeepTheLine(t *testing.T) {
	for name, use := range map[string]func(id *Identity) error{
		"confirms": func(id *Identity) error { return confirm(t, id) },
		"renews":   func(id *Identity) error { return id.Renew(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			ca := openCA(t)
			s := NewServer(ca)
			url := serve(t, s, s.Handler(slog.New(slog.DiscardHandler)))
			o := options(t, ca, url, "management-01")
			honest := open(t, o)
			thief := steal(t, o)
			if err := errors.Join(honest.Renew(t.Context()), thief.Renew(t.Context()),
				confirm(t, thief)); err != nil {
				t.Fatal(err)
			}
			_ = use(honest) // confirm logs that it was refused
			if err := thief.Renew(t.Context()); err == nil || !strings.Contains(err.Error(), "revoked") {
				t.Errorf("the thief renews: %v", err)
			}
			for range 3 {
				_ = use(honest)
				_ = thief.Renew(t.Context())
			}
			if n := alarms(t, s); n != 1 {
				t.Errorf("%v alarms", n)
			}
		})
	}
}

// A superseded identity needs a token, so that a supervisor makes one.
func TestASupersededIdentityIsNotEnrolled(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	o := options(t, ca, url, "system:clm")
	id := open(t, o)
	old := steal(t, o)
	if err := errors.Join(id.Renew(t.Context()), confirm(t, id)); err != nil {
		t.Fatal(err)
	}
	if Enrolled(ca.dir, old.o.Dir, o.Name) || !Enrolled(ca.dir, o.Dir, o.Name) {
		t.Error("Enrolled says otherwise")
	}
}

// A command's certificate leaves nothing behind: it expires soon, renews nothing, and is forgotten.
func TestACommandsCertificateIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := openCA(t)
		sign := func() *Identity {
			key, _ := newKey()
			csr, _ := encodeCSR(key, "")
			data, err := ca.SignForCommand(csr, "system:operator")
			if err != nil {
				t.Fatal(err)
			}
			chain, err := parseChain(data)
			if err != nil {
				t.Fatal(err)
			}
			if life := time.Until(chain[0].NotAfter); life > CommandValidity {
				t.Errorf("it is good for %s", life)
			}
			id := &Identity{}
			id.use(key, chain)
			return id
		}
		first := sign()
		key, _ := newKey()
		csr, _ := encodeCSR(key, "")
		request, err := parseCSR(csr)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := ca.grant(request, func() (applicant, error) {
			return applicant{name: "system:operator", by: first.Certificate(), validity: DefaultValidity}, nil
		}); !errors.Is(err, errUsedKey) {
			t.Errorf("it renews: %v", err)
		}
		for range 20 {
			sign()
			wait(CommandValidity)
		}
		issued, err := readRecord[issuedRecord](ca.dir, issuedDir, "system:operator")
		if err != nil || len(issued.Certificates) > 3 {
			t.Errorf("%d records, %v", len(issued.Certificates), err)
		}
		lines, err := readRecord[lineRecord](ca.dir, linesDir, "system:operator")
		if err != nil || len(lines.Keys) > 3 {
			t.Errorf("%d keys, %v", len(lines.Keys), err)
		}
		// The CA has forgotten it, and it would be within the time in which expired certificates renew.
		l, stop := bubbleCA(t, ca)
		defer stop()
		first.o = IdentityOptions{Name: "system:operator", URL: "https://localhost:1", dial: l.dial}
		first.trust.Store(newTrust(ca.roots().all(), nil))
		_, err = first.requestCertificate(t.Context(), key, "")
		if err == nil || !strings.Contains(err.Error(), "key-used") {
			t.Errorf("it renews when it is forgotten: %v", err)
		}
	})
}

// The holder of a certificate gets a bounded number of further ones, whether it asks for one key again and again or for
// a new key each time. Another line of the name gets its own.
func TestALineGetsABoundedNumberOfCertificates(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	for what, next := range map[string]func() *ecdsa.PrivateKey{
		"one key": func() func() *ecdsa.PrivateKey {
			key, _ := newKey()
			return func() *ecdsa.PrivateKey { return key }
		}(),
		"new keys": func() *ecdsa.PrivateKey { key, _ := newKey(); return key },
	} {
		holder, other := open(t, options(t, ca, url, "management-01")), open(t, options(t, ca, url, "management-01"))
		got := 0
		for ; got <= maxLinePace; got++ {
			if _, err := holder.requestCertificate(t.Context(), next(), ""); err != nil {
				if !strings.Contains(err.Error(), "too-many-certificates") {
					t.Errorf("%s: %v", what, err)
				}
				break
			}
		}
		if got == 0 || got >= maxLinePace {
			t.Errorf("%s: the holder got %d certificates", what, got)
		}
		if err := other.Renew(t.Context()); err != nil {
			t.Errorf("%s: another line: %v", what, err)
		}
	}
}

// The bounds of a line: by time, which goes on, and by keys that nobody has used.
func TestThePaceOfALine(t *testing.T) {
	now, validity := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), 7*24*time.Hour
	lines := lineRecord{Keys: []lineKey{{Key: "first"}, {Key: "stranger"}}}
	var issued []issuedCert
	issue := func(key string, at time.Time) {
		issued = append(issued, issuedCert{Key: key, Expires: at.Add(validity)})
	}
	for i := range maxLinePace {
		if err := lines.checkPace("first", "next", issued, validity, now); err != nil {
			t.Fatalf("after %d certificates: %v", i, err)
		}
		issue("first", now)
		issue("stranger", now)
	}
	if err := lines.checkPace("first", "next", issued, validity, now.Add(linePace/2)); !errors.Is(err, errTooMany) {
		t.Errorf("too many in an hour: %v", err)
	}
	if err := lines.checkPace("first", "next", issued, validity, now.Add(linePace)); err != nil {
		t.Errorf("an hour later: %v", err)
	}
	for i := range maxUnconfirmed {
		lines.add(fmt.Sprint(i), "first", now.Add(validity))
	}
	if err := lines.checkPace("first", "next", nil, validity, now); !errors.Is(err, errTooMany) {
		t.Errorf("too many unused keys: %v", err)
	}
	lines.confirm("0", now)
	if err := lines.checkPace("0", "next", nil, validity, now); err != nil {
		t.Errorf("the next key of the line: %v", err)
	}
}
