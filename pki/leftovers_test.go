package pki

import (
	"bytes"
	"crypto/x509"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// issuingFiles returns the files of issuing CAs and of the roots' lists, by name.
func issuingFiles(t *testing.T, ca *CA) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	dir := filepath.Join(ca.dir, issuingDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if files[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// isRootList reports whether a file of issuingDir is the list of a root.
func isRootList(name string) bool { return strings.HasPrefix(name, "root-crl") }

// A kill between two writes of a revocation of issuing CAs leaves a CA that works, in this process and in the next one.
// No file of a revoked issuing CA, with its key, stays. The command can be repeated, and the root be retired.
func TestI12ARevocationOfIssuingCAsSurvivesAKillAtEachStep(t *testing.T) {
	for name, kill := range map[string]struct {
		lists   func(name string) bool // which lists of roots were written
		removed int                    // how many files of revoked issuing CAs
	}{
		"before the lists":             {lists: func(string) bool { return false }},
		"between the lists":            {lists: func(name string) bool { return name == rootListFile }},
		"between the lists, the other": {lists: func(name string) bool { return name != rootListFile }},
		"before the first removal":     {lists: isRootList},
		"after the first removal":      {lists: isRootList, removed: 1},
		"before crl.pem":               {lists: isRootList, removed: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ca, first, next := rotated(t, RootCompleted)
				wait(2 * time.Second)
				before, list := issuingFiles(t, ca), readFile(t, ca.CRLFile())
				if err := ca.Issue(IssueOptions{Revoke: []Role{Agents}}); err != nil {
					t.Fatal(err)
				}
				after := issuingFiles(t, ca)
				var revoked []string
				for _, name := range slices.Sorted(maps.Keys(before)) {
					if after[name] == nil {
						revoked = append(revoked, name)
					}
				}
				if len(revoked) != 2 {
					t.Fatalf("%v are revoked", revoked)
				}
				writeFile(t, ca.CRLFile(), list)
				past := time.Now() // in the bubble: times of files are real, and as coarse as the kernel's ticks
				if err := os.Chtimes(ca.CRLFile(), past, past); err != nil {
					t.Fatal(err)
				}
				for _, name := range slices.Sorted(maps.Keys(after)) {
					if isRootList(name) && !kill.lists(name) {
						writeFile(t, filepath.Join(ca.dir, issuingDir, name), before[name])
					}
				}
				for _, name := range revoked[kill.removed:] {
					writeFile(t, filepath.Join(ca.dir, issuingDir, name), before[name])
				}
				wait(2 * time.Second)
				works(t, "going on after the kill", ca)
				hasNoRevoked(t, "going on after the kill", ca)
				killed := openCAIn(t, ca.dir)
				works(t, "opened after the kill", killed)
				hasNoRevoked(t, "opened after the kill", killed)
				if err := killed.Issue(IssueOptions{Revoke: []Role{Agents}}); err != nil {
					t.Fatal(err)
				}
				wait(2 * time.Second)
				works(t, "repeated", ca)
				hasNoRevoked(t, "repeated", ca)
				for name := range issuingFiles(t, ca) {
					if slices.Contains(revoked, name) {
						t.Errorf("repeated: %s is still there", name)
					}
				}
				for _, root := range []struct {
					name string
					have int
				}{{"first", len(rootList(t, ca, first))}, {"next", len(rootList(t, ca, next))}} {
					if root.have == 0 {
						t.Errorf("repeated: the list of the %s root is empty", root.name)
					}
				}
				if err := ca.RetireRoot(RotationOptions{}); err != nil {
					t.Fatal(err)
				}
				works(t, "retired", ca)
			})
		})
	}
}

// A revoked issuing CA, whose file a killed revocation has left, goes with its root. Later nobody could know it.
func TestARetiredRootLeavesNoFileOfARevokedIssuingCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, first, _ := rotated(t, RootCompleted)
		wait(2 * time.Second)
		before := issuingFiles(t, ca)
		if err := ca.Issue(IssueOptions{Revoke: Roles[:]}); err != nil {
			t.Fatal(err)
		}
		wait(2 * time.Second)
		for name, data := range before {
			if !isRootList(name) {
				writeFile(t, filepath.Join(ca.dir, issuingDir, name), data)
			}
		}
		have, err := ca.readIssuers()
		if n := len(have.below(first).revoked); err != nil || n != 2 || len(have.revoked) != 4 {
			t.Fatalf("%d of %d revoked are below the first root: %v", n, len(have.revoked), err)
		}
		if err := ca.RetireRoot(RotationOptions{}); err != nil {
			t.Fatal(err)
		}
		works(t, "retired", ca)
		for name := range issuingFiles(t, ca) {
			if before[name] != nil && !isRootList(name) {
				t.Errorf("%s is still there", name)
			}
		}
	})
}

// The removal of the issuing CAs below the retired root is on disk before the root is forgotten: after a power failure
// no file could come back that nobody can verify. Without that sync the root stays, and the step can be repeated.
func TestRemovedIssuingCAsAreOnDiskBeforeTheirRootIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, first, _ := rotated(t, RootCompleted)
		wait(2 * time.Second)
		issuing, failure := filepath.Join(ca.dir, issuingDir), errors.New("the disk fails")
		var synced []string
		ca.syncDir = func(dir string) error {
			synced = append(synced, dir)
			have, err := ca.readIssuers()
			if err != nil || dir == issuing && have.below(first).countOf(Agents)+have.below(first).countOf(Services) > 0 {
				t.Errorf("when %s is synced: files below the first root are there, %v", dir, err)
			}
			if isNext := isFile(filepath.Join(ca.dir, nextFile)); isNext != (dir == issuing) {
				t.Errorf("when %s is synced: the first root is there: %t", dir, isNext)
			}
			return failure
		}
		if err := ca.RetireRoot(RotationOptions{}); !errors.Is(err, failure) || !ca.Certificate().Equal(first) {
			t.Errorf("a sync that fails: %v", err)
		}
		failure = nil
		if err := ca.RetireRoot(RotationOptions{}); err != nil {
			t.Fatal(err)
		}
		works(t, "retired", ca)
		if want := []string{issuing, issuing, ca.dir}; !slices.Equal(synced, want) {
			t.Errorf("synced %v, want %v", synced, want)
		}
	})
}

// A process that joins another region replaces the roots of the region before, and no later error names them.
func TestTheRootsOfTheRegionBeforeAreForgotten(t *testing.T) {
	before, first, next := rotated(t, RootPrepared)
	crosses, err := before.crosses()
	if err != nil {
		t.Fatal(err)
	}
	ca := openCA(t)
	o := options(t, ca, serveCA(t, ca), "edge-7")
	path := filepath.Join(o.Dir, trustFile)
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, newTrust([]*x509.Certificate{first, next}, crosses).encode())
	id := open(t, o)
	if got := readFile(t, path); !bytes.Equal(got, ca.CertPEM()) || !trusts(id, ca.Certificate()) {
		t.Errorf("it trusts %v, and stores %s", id.trust.Load().fingerprints(), got)
	}
	stranger, err := before.issue(newPublicKey(t), applicant{name: "edge-7", validity: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := id.check(stranger, time.Now()); err == nil || strings.Contains(err.Error(), path) {
		t.Errorf("the error names the roots of before: %v", err)
	}
}

// hasNoRevoked fails the test when there is a file of a revoked issuing CA.
func hasNoRevoked(t *testing.T, when string, ca *CA) {
	t.Helper()
	have, err := ca.readIssuers()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range have.revoked {
		t.Errorf("%s: %s is still there", when, ca.issuerFile(i.role, i.cert))
	}
}

// rootList returns the serial numbers in the list of a root.
func rootList(t *testing.T, ca *CA, root *x509.Certificate) (serials []string) {
	t.Helper()
	list, err := readRootList(ca.dir, root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.RevokedCertificateEntries {
		serials = append(serials, e.SerialNumber.String())
	}
	return serials
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
