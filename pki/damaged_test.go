package pki

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// damages are ways to damage a file of an issuing CA. other is the file of another region.
func damages(t *testing.T, path string, other []byte) map[string]func() error {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]func() error{
		"empty":             func() error { return os.WriteFile(path, nil, 0o600) },
		"cut":               func() error { return os.WriteFile(path, data[:len(data)/2], 0o600) },
		"of another region": func() error { return os.WriteFile(path, other, 0o600) },
		"unreadable":        func() error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
	}
}

// readIssuerFile returns the content of the file of the issuing CA that signs for a role.
func readIssuerFile(t *testing.T, ca *CA, role Role) (path string, data []byte) {
	t.Helper()
	path = ca.issuerFile(role, stolen(t, ca, role).cert)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, data
}

// warnsOf reports whether a warning of the CA's status names a file and has a text.
func warnsOf(t *testing.T, ca *CA, path, text string) bool {
	t.Helper()
	status, err := ca.Status()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(status.Warnings, func(w string) bool {
		return strings.Contains(w, path) && strings.Contains(w, text)
	})
}

// A damaged file of a replaced issuing CA stops nothing but the revocation of that one, which needs its certificate.
func TestADamagedFileOfAReplacedIssuingCAStopsNothing(t *testing.T) {
	_, other := readIssuerFile(t, openCA(t), Agents)
	for _, name := range []string{"empty", "cut", "of another region", "unreadable"} {
		t.Run(name, func(t *testing.T) {
			ca := openCA(t)
			url := serveCA(t, ca)
			server, agent := open(t, options(t, ca, url, "system:broker")), open(t, options(t, ca, url, "edge-7"))
			path, _ := readIssuerFile(t, ca, Agents)
			if err := errors.Join(ca.Issue(IssueOptions{}), damages(t, path, other)[name]()); err != nil {
				t.Fatal(err)
			}
			ca = openCAIn(t, ca.dir) // a restart
			signsValid(t, ca, "with the damaged file")
			if !warnsOf(t, ca, path, "restore it from a backup") {
				t.Error("no warning")
			}
			knowCRL(t, ca, server)
			if got, err := handshake(t, server.ServerTLS(CertificateRequired), agent.ClientTLS("broker")); got != "edge-7" {
				t.Errorf("a certificate of it: %q %v", got, err)
			}
			if err := agent.Renew(t.Context()); err != nil {
				t.Errorf("a certificate of it is not renewed: %v", err)
			}
			// Who has a copy of its key stays every agent, so this must not look done.
			err := ca.Issue(IssueOptions{Revoke: []Role{Agents}})
			if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "cannot be revoked") {
				t.Errorf("it is revoked: %v", err)
			}
			if err := ca.Issue(IssueOptions{Revoke: []Role{Services}}); err != nil {
				t.Errorf("the other role: %v", err)
			}
			if err := errors.Join(os.Rename(path, filepath.Join(t.TempDir(), "away")),
				ca.Issue(IssueOptions{Revoke: []Role{Agents}})); err != nil {
				t.Error(err)
			}
			if status, err := ca.Status(); err != nil || len(status.Warnings) > 0 {
				t.Errorf("%+v %v", status, err)
			}
		})
	}
}

// When the file of the issuing CA that signs is damaged, its role signs nothing, and the error says what to do. The
// other role and the revocation list go on.
func TestADamagedFileOfTheSigningIssuingCAIsAnError(t *testing.T) {
	_, other := readIssuerFile(t, openCA(t), Agents)
	for _, name := range []string{"empty", "cut", "of another region", "unreadable"} {
		t.Run(name, func(t *testing.T) {
			ca := openCA(t)
			path, data := readIssuerFile(t, ca, Agents)
			if err := damages(t, path, other)[name](); err != nil {
				t.Fatal(err)
			}
			ca = openCAIn(t, ca.dir)
			sign := func(name Name) error {
				_, err := ca.issue(newPublicKey(t), applicant{name: name, validity: DefaultValidity})
				return err
			}
			for what, err := range map[string]error{"it signs": sign("edge-7"),
				"it is ready": NewServer(ca).Check(t.Context())} {
				if !errors.Is(err, ErrNoIssuer) || !strings.Contains(err.Error(), path) ||
					!strings.Contains(err.Error(), "restore it from a backup, or run `atoll ca issue`") {
					t.Errorf("%s: %v", what, err)
				}
			}
			if status, err := ca.Status(); err != nil || len(status.Warnings) != 2 ||
				!strings.Contains(status.Warnings[0], "no certificate of agents is signed: the file") ||
				!strings.Contains(status.Warnings[1], path) {
				t.Errorf("%+v %v", status, err)
			}
			if err := sign("system:clm"); err != nil {
				t.Errorf("the other role: %v", err)
			}
			if _, _, err := ca.CRL(); err != nil {
				t.Errorf("the list: %v", err)
			}
			if err := ca.Issue(IssueOptions{}); err != nil {
				t.Fatal(err)
			}
			signsValid(t, ca, "after `atoll ca issue`")
			if !warnsOf(t, ca, path, "restore it from a backup") {
				t.Error("no warning")
			}
			if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, data, 0o600)); err != nil {
				t.Fatal(err)
			}
			signsValid(t, ca, "after it was restored")
			if status, err := ca.Status(); err != nil || len(status.Warnings) > 0 {
				t.Errorf("%+v %v", status, err)
			}
		})
	}
}

// The issuing CA that was made last has a damaged file. The one before it is valid and signs, until its key is gone.
func TestTheIssuingCABeforeADamagedOneSigns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := openCA(t)
		first := stolen(t, ca, Agents).cert
		wait(time.Hour)
		if err := ca.Issue(IssueOptions{}); err != nil {
			t.Fatal(err)
		}
		path, _ := readIssuerFile(t, ca, Agents)
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
		signsValid(t, ca, "with the damaged file")
		if by := stolen(t, ca, Agents).cert; !by.Equal(first) {
			t.Errorf("%s signs", by.Subject.CommonName)
		}
		if !warnsOf(t, ca, path, "is damaged") {
			t.Error("no warning")
		}
	})
}
