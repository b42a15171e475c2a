package pki

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// atDay calls f with the CA in a directory, d days after a fixed date. Each call has a clock of its own, so a call with
// fewer days than the call before sees a clock that was set back.
func atDay(t *testing.T, dir string, d int, f func(t *testing.T, ca *CA)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		wait(time.Duration(d) * 24 * time.Hour)
		f(t, openCAIn(t, dir))
	})
}

// signsValid reports an error unless the CA signs a certificate of each role that is valid now, and a list.
func signsValid(t *testing.T, ca *CA, when string) {
	t.Helper()
	for _, name := range []Name{"edge-7", "system:clm"} {
		key, _ := newKey()
		csr, err := encodeCSR(key, name)
		if err != nil {
			t.Fatal(err)
		}
		data, err := ca.Sign(csr, name)
		if err != nil {
			t.Errorf("%s: %v", when, err)
			continue
		}
		chain, err := parseChain(data)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := verifyClient(chain, ca.Pool(), time.Now()); got != name || err != nil {
			t.Errorf("%s: the certificate of %s is not valid: %q %v", when, name, got, err)
		}
	}
	if _, _, err := ca.CRL(); err != nil {
		t.Errorf("%s: %v", when, err)
	}
	if err := NewServer(ca).Check(t.Context()); err != nil {
		t.Errorf("%s: not ready: %v", when, err)
	}
}

// beginsLater returns the warnings of a CA about issuing CAs that have not begun.
func beginsLater(t *testing.T, ca *CA) (warnings []string) {
	t.Helper()
	status, err := ca.Status()
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range status.Warnings {
		if strings.Contains(w, "begins at ") {
			warnings = append(warnings, w)
		}
	}
	return warnings
}

// The clock was ahead while the issuing CAs were renewed, and is right again. Those of before sign on, until the others
// begin.
func TestAnIssuingCAThatBeginsLaterSignsNothingYet(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ca")
	atDay(t, dir, 0, func(t *testing.T, ca *CA) { signsValid(t, ca, "at first") })
	atDay(t, dir, 300, func(t *testing.T, ca *CA) { signsValid(t, ca, "with the clock ahead") })
	atDay(t, dir, 1, func(t *testing.T, ca *CA) {
		signsValid(t, ca, "with the clock set back")
		if w := beginsLater(t, ca); len(w) != len(Roles) {
			t.Errorf("warnings: %q", w)
		}
		// One that is made now signs at once, and not after those of the future.
		if err := ca.Issue(IssueOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, role := range Roles {
			if by := stolen(t, ca, role).cert.NotBefore; !by.Equal(time.Now().Add(-skew)) {
				t.Errorf("%s: the issuing CA that signs begins at %s", role, by)
			}
		}
		signsValid(t, ca, "with one made now")
	})
	atDay(t, dir, 301, func(t *testing.T, ca *CA) {
		signsValid(t, ca, "when the others have begun")
		if w := beginsLater(t, ca); len(w) > 0 {
			t.Errorf("warnings: %q", w)
		}
	})
}

// The clock was ahead for so long that the keys of the earlier issuing CAs are gone. With the root's key new ones are
// made at once; without it an error names the step.
func TestIssuingCAsAreMadeWhenAllOthersBeginLater(t *testing.T) {
	for name, isOffline := range map[string]bool{"with the root's key": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "ca")
			atDay(t, dir, 0, func(t *testing.T, ca *CA) { signsValid(t, ca, "at first") })
			var key []byte
			atDay(t, dir, 300, func(t *testing.T, ca *CA) {
				wait(30 * 24 * time.Hour)
				signsValid(t, ca, "with the clock ahead") // removes the keys of before
				if isOffline {
					key = takeKey(t, ca)
				}
			})
			atDay(t, dir, 1, func(t *testing.T, ca *CA) {
				if isOffline {
					_, err := ca.issue(newPublicKey(t), applicant{name: "edge-7", validity: DefaultValidity})
					if !errors.Is(err, ErrNoIssuer) || !strings.Contains(err.Error(), "check the clock") ||
						!strings.Contains(err.Error(), "atoll ca issue") {
						t.Errorf("it signs: %v", err)
					}
					if status, err := ca.Status(); err != nil || len(status.Warnings) < 2 ||
						!strings.Contains(status.Warnings[0], "no certificate of services is signed") {
						t.Errorf("%+v %v", status, err)
					}
					if err := ca.Issue(IssueOptions{RootKey: key}); err != nil {
						t.Fatal(err)
					}
				}
				signsValid(t, ca, "with the clock set back")
			})
		})
	}
}

func newPublicKey(t *testing.T) any {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	return key.Public()
}
