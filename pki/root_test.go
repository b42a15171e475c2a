package pki

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/api/audit"
)

// takeKey takes the root's key out of a CA and returns it.
func takeKey(t *testing.T, ca *CA) (kept []byte) {
	t.Helper()
	if err := ca.TakeRootKey("root", func(data []byte) error { kept = bytes.Clone(data); return nil }); err != nil {
		t.Fatal(err)
	}
	return kept
}

// A region without its root's key enrols, renews and revokes for as long as its issuing CAs last. It says in time that
// they end, and new ones made with the key take over without a gap.
func TestARegionGoesOnWithoutItsRootKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := openCA(t)
		l, stop := bubbleCA(t, ca)
		defer stop()
		rootKey := takeKey(t, ca)
		for _, e := range readAll(t, ca.dir) {
			if bytes.Contains(e, rootKey[:200]) {
				t.Fatal("the root's key is still in the CA's directory")
			}
		}
		if err := ca.TakeRootKey("root", func([]byte) error { return nil }); !errors.Is(err, ErrRootOffline) {
			t.Errorf("taken twice: %v", err)
		}
		if _, err := OpenCA(ca.dir); err != nil {
			t.Fatalf("opened without the key: %v", err)
		}
		join := func(name Name) *Identity {
			o := options(t, ca, "https://localhost:1", name)
			o.dial = l.dial
			return open(t, o)
		}
		server, agent := join("system:broker"), join("edge-7")
		meet := func(when string) {
			t.Helper()
			knowCRL(t, ca, server)
			if name, err := handshake(t, server.ServerTLS(CertificateRequired), agent.ClientTLS("broker")); name != "edge-7" {
				t.Errorf("%s: %q %v", when, name, err)
			}
		}
		meet("at first")
		warnings := func() []string {
			t.Helper()
			status, err := ca.Status()
			if err != nil || !status.Root.KeyOffline {
				t.Fatalf("%+v %v", status, err)
			}
			return status.Warnings
		}
		renew := func() {
			t.Helper()
			wait(6 * 24 * time.Hour)
			if err := errors.Join(agent.Renew(t.Context()), server.Renew(t.Context()), confirm(t, server),
				confirm(t, agent)); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		for time.Since(began) < issuingValidity*2/3-5*24*time.Hour {
			if w := warnings(); len(w) > 0 {
				t.Fatalf("after %s: %q", time.Since(began), w)
			}
			renew()
		}
		renew()
		renew()
		meet("after two thirds")
		if w := warnings(); len(w) != 2 || !strings.Contains(w[0], "atoll ca issue") {
			t.Fatalf("warnings: %q", w)
		}
		if err := NewServer(ca).Check(t.Context()); err != nil {
			t.Errorf("not ready while its issuing CAs are valid: %v", err)
		}
		old := agent.Certificate()
		if err := ca.Issue(IssueOptions{RootKey: rootKey}); err != nil {
			t.Fatal(err)
		}
		if w := warnings(); len(w) > 0 {
			t.Errorf("warnings after the issue: %q", w)
		}
		meet("with a certificate of the last issuing CA")
		renew()
		meet("with one of the new issuing CA")
		if bytes.Equal(agent.Certificate().RawIssuer, old.RawIssuer) {
			t.Error("the old issuing CA signs")
		}
		if data, err := os.ReadFile(filepath.Join(ca.dir, caFile)); err != nil || bytes.Contains(data, []byte(pemKey)) {
			t.Errorf("the root's key was put back: %v", err)
		}
		// Nobody comes with the key: the region stops with an error that says so.
		wait(issuingValidity)
		if err := NewServer(ca).Check(t.Context()); !errors.Is(err, ErrNoIssuer) {
			t.Errorf("ready without an issuing CA: %v", err)
		}
		if w := warnings(); len(w) != 2 || !strings.Contains(w[0], "has ended") {
			t.Errorf("warnings: %q", w)
		}
		if err := ca.Issue(IssueOptions{RootKey: rootKey}); err != nil {
			t.Fatal(err)
		}
		if err := NewServer(ca).Check(t.Context()); err != nil {
			t.Errorf("after the issue: %v", err)
		}
	})
}

// readAll returns the content of all files below a directory.
func readAll(t *testing.T, dir string) (files [][]byte) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		files = append(files, data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// The key stays until it was kept elsewhere, and only the region's own root makes issuing CAs.
func TestTheRootKeyIsNotLost(t *testing.T) {
	ca := openCA(t)
	broken := errors.New("disk full")
	if err := ca.TakeRootKey("root", func([]byte) error { return broken }); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	if err := ca.Issue(IssueOptions{}); err != nil {
		t.Errorf("the key is gone though it was kept nowhere: %v", err)
	}
	other := takeKey(t, openCA(t))
	key := takeKey(t, ca)
	for name, data := range map[string][]byte{"another root": other, "nothing": nil, "the certificate": ca.CertPEM(),
		"garbage": []byte("garbage"), "cut": key[:len(key)/3]} {
		if err := ca.Issue(IssueOptions{RootKey: data}); err == nil {
			t.Errorf("%s makes issuing CAs", name)
		}
	}
	if err := ca.Issue(IssueOptions{RootKey: key}); err != nil {
		t.Error(err)
	}
}

// After the theft of the agents' key its issuing CA is revoked: connections end, certificates renew no more, and the
// services go on.
func TestI7ARevokedIssuingCAEndsItsCertificates(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	server := open(t, options(t, ca, url, "system:broker"))
	run(t, server)
	addr := listen(t, server)
	for end := time.Now().Add(hangLimit); server.Check(t.Context()) != nil && time.Now().Before(end); {
		<-time.After(5 * time.Millisecond)
	}
	o := options(t, ca, url, "edge-7")
	agent, service := open(t, o), open(t, options(t, ca, url, "system:maestro"))
	conn, err := dial(t, addr, agent)
	if err != nil {
		t.Fatal(err)
	}
	thief := stolen(t, ca, Agents)
	before, _, err := ca.CRL()
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Issue(IssueOptions{Revoke: []Role{Agents}}); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection goes on: %v", err)
	}
	if _, err := dial(t, addr, agent); err == nil {
		t.Error("it connects again")
	}
	cert := forge(t, thief, "edge-8", nil, nil)
	cert.Certificate = append(cert.Certificate, thief.cert.Raw)
	if _, err := handshake(t, server.ServerTLS(CertificateRequired), client(ca, cert)); err == nil {
		t.Error("a forged certificate is accepted")
	}
	if err := agent.Renew(t.Context()); err == nil || !strings.Contains(err.Error(), codeRevoked) {
		t.Errorf("it renews: %v", err)
	}
	if Enrolled(ca.dir, o.Dir, o.Name) {
		t.Error("a supervisor makes it no token")
	}
	if _, err := os.Stat(ca.issuerFile(Agents, thief.cert)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the stolen key is still used: %v", err)
	}
	if _, err := dial(t, addr, service); err != nil {
		t.Errorf("a service is refused: %v", err)
	}
	if accepted, err := server.acceptCRL(t.Context(), before); accepted || err == nil {
		t.Errorf("the list of before is accepted: %v %v", accepted, err)
	}
	// With a token it joins below the new issuing CA.
	token, err := ca.CreateToken("edge-7", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	o.Token, o.TokenFile, o.Logger = token, "", slog.New(slog.DiscardHandler)
	again, err := OpenIdentity(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	var next *tls.Conn
	if next, err = dial(t, addr, again); err != nil {
		t.Errorf("with a token: %v", err)
	} else {
		next.Close()
	}
	if err := ca.Issue(IssueOptions{}); err != nil {
		t.Fatal(err)
	}
	if list, err := readRootList(ca.dir, ca.Certificate()); err != nil || !isListed(list, thief.cert) {
		t.Errorf("a later list has forgotten it: %v", err)
	}
}

// The key of a replaced issuing CA goes when nothing needs it. Somebody may have a copy, so it can be revoked until it
// expires.
func TestI7AReplacedIssuingCAIsRevokedWithTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := openCA(t)
		thief := stolen(t, ca, Agents)
		if err := ca.Issue(IssueOptions{}); err != nil {
			t.Fatal(err)
		}
		wait(30 * 24 * time.Hour)
		if _, _, err := ca.CRL(); err != nil { // removes keys
			t.Fatal(err)
		}
		data, err := os.ReadFile(ca.issuerFile(Agents, thief.cert))
		if err != nil || bytes.Contains(data, []byte(pemKey)) {
			t.Fatalf("the key of the replaced issuing CA is kept, or its certificate is not: %v", err)
		}
		list := func() bool {
			root, err := readRootList(ca.dir, ca.Certificate())
			if err != nil {
				t.Fatal(err)
			}
			return isListed(root, thief.cert)
		}
		if list() {
			t.Error("a replaced issuing CA is revoked")
		}
		if err := ca.Issue(IssueOptions{Revoke: []Role{Agents}}); err != nil {
			t.Fatal(err)
		}
		if !list() {
			t.Error("whoever has copied the key of the replaced issuing CA is still every agent")
		}
	})
}

// Without the list of revoked issuing CAs nothing is signed: a revoked one would count again.
func TestAMissingListOfTheRootIsAnError(t *testing.T) {
	ca := openCA(t)
	if err := os.Remove(filepath.Join(ca.dir, issuingDir, rootListFile)); err != nil {
		t.Fatal(err)
	}
	key, _ := newKey()
	csr, err := encodeCSR(key, "edge-7")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Sign(csr, "edge-7"); err == nil || !strings.Contains(err.Error(), "restore it from a backup") {
		t.Errorf("it signs: %v", err)
	}
	if err := ca.Issue(IssueOptions{}); err == nil {
		t.Error("it makes issuing CAs")
	}
	if _, err := OpenCA(ca.dir); err == nil {
		t.Error("it is opened")
	}
}

func TestIssuingCAsAreBounded(t *testing.T) {
	ca := openCA(t)
	var err error
	for n := 0; err == nil && n < 2*maxIssuers; n++ {
		err = ca.Issue(IssueOptions{})
	}
	if !errors.Is(err, errTooManyIssuers) {
		t.Fatal(err)
	}
	if _, _, err := ca.CRL(); err != nil {
		t.Errorf("at the bound: %v", err)
	}
	if err := ca.Issue(IssueOptions{Revoke: Roles[:]}); err != nil {
		t.Error(err)
	}
	if have, err := ca.readIssuers(); err != nil || len(have.intact) != len(Roles) {
		t.Errorf("%d issuing CAs: %v", len(have.intact), err)
	}
}

// Each command that uses the root's key, revokes a name or lets it join again is in the region's audit, with the user.
func TestCommandsInTheCAsDirectoryAreAudited(t *testing.T) {
	ca := openCA(t)
	revoked := stolen(t, ca, Agents).cert.SerialNumber.Text(16)
	err := ca.Issue(IssueOptions{By: "cli:eve", Revoke: []Role{Agents}})
	if err == nil {
		err = ca.TakeRootKey("cli:ann", func([]byte) error { return nil })
	}
	if err == nil {
		_, err = ca.Revoke("edge-7", Command{By: "cli:bob", Reason: "stolen"})
	}
	for range 2 { // the second one changes nothing
		if err == nil {
			_, err = ca.Allow("edge-7", Command{By: "cli:bob"})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	items, _, err := ca.readAudit(0)
	if err != nil {
		t.Fatal(err)
	}
	root := ca.Certificate().SerialNumber.Text(16)
	want := [][3]string{{"cli:eve", "IssueIssuingCAs", root}, {"cli:eve", "RevokeIssuingCA", revoked},
		{"cli:ann", "TakeRootKey", root}, {"cli:bob", "RevokeName", "edge-7"}, {"cli:bob", "AllowName", "edge-7"}}
	for i, c := range items {
		var by audit.Request
		if err := json.Unmarshal(c.Request, &by); err != nil || i >= len(want) ||
			want[i] != [3]string{by.ProofID, by.Action, c.ID} || by.Proof != audit.ByDirectory || !by.Operator {
			t.Errorf("record %d: %+v %s %v", i, c, c.Request, err)
		}
	}
	if len(items) != len(want) {
		t.Errorf("%d records", len(items))
	}
}

// A process that is given an issuing CA in the place of the root would take every name from it.
func TestI7AnIssuingCAIsNoRoot(t *testing.T) {
	ca := openCA(t)
	o := options(t, ca, serveCA(t, ca), "edge-7")
	for _, role := range Roles {
		o.CAFile = filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(o.CAFile, encodeCert(stolen(t, ca, role).cert.Raw), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenIdentity(t.Context(), o); err == nil || !strings.Contains(err.Error(), "holds an issuing CA") {
			t.Errorf("%s: %v", role, err)
		}
	}
}
