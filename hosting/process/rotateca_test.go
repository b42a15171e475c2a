package process

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"atoll.dev/api/rotation"
	"atoll.dev/hosting/controlplane"
)

// caDir makes a plane's directory with a CA.
func caDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	writeAuthority(t, dir, key)
	return dir
}

// caFiles returns the content of all files of the CA, by name.
func caFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	content := map[string]string{}
	entries, err := os.ReadDir(filepath.Join(dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, "pki", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		content["pki/"+e.Name()] = string(data)
	}
	return content
}

// pemCertificates parses the certificates of a PEM text.
func pemCertificates(t *testing.T, text []byte) (list []*x509.Certificate) {
	t.Helper()
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != certificateBlock {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, c)
	}
	return list
}

// signClient signs a client certificate with a plane's CA, and returns it with the CAs that come with it.
func signClient(t *testing.T, dir string) (certificate *x509.Certificate, bundle []*x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := Sign(dir, controlplane.CertificateRequest{PublicKey: key.Public(), CommonName: "u", Organization: "g",
		Expires: time.Now().Add(time.Hour)}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return pemCertificates(t, signed.PEM)[0], pemCertificates(t, signed.CAPEM)
}

// verifies reports whether roots verify a certificate, with the intermediate certificates that a plane sends.
func verifies(t *testing.T, dir string, c *x509.Certificate, roots ...*x509.Certificate) bool {
	t.Helper()
	o := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	for _, root := range roots {
		o.Roots.AddCert(root)
	}
	for _, cross := range pemCertificates(t, []byte(caFiles(t, dir)[caEarlierFile])) {
		o.Intermediates.AddCert(cross)
	}
	_, err := c.Verify(o)
	return err == nil
}

func prepareCA(id string) controlplane.Rotations {
	return controlplane.Rotations{CA: rotation.Order{ID: id, Step: rotation.Prepare}}
}

func completeCA(id string) controlplane.Rotations {
	return controlplane.Rotations{CA: rotation.Order{ID: id, Step: rotation.Complete}}
}

// After the first step, whoever trusts only an earlier CA verifies certificates of the new one, also after a first step
// whose second one never came, and new kubeconfigs trust all. After the second step the newest CA is alone.
func TestACAIsRotatedOnce(t *testing.T) {
	dir := caDir(t)
	none := controlplane.Rotations{}
	before := caFiles(t, dir)
	if err := rotateKeys(dir, none, completeCA("r1")); !errors.Is(err, errUnprepared) {
		t.Errorf("the second step without the first: %v", err)
	}
	if !maps.Equal(caFiles(t, dir), before) {
		t.Error("a refused step changed a file")
	}
	oldCertificate, oldCAs := signClient(t, dir)
	for _, id := range []string{"r1", "r2"} {
		if err := rotateKeys(dir, none, prepareCA(id)); err != nil {
			t.Fatal(err)
		}
		prepared := caFiles(t, dir)
		if err := rotateKeys(dir, none, prepareCA(id)); err != nil || !maps.Equal(caFiles(t, dir), prepared) {
			t.Errorf("the first step of %s again: %v", id, err)
		}
	}
	newCertificate, newCAs := signClient(t, dir)
	if len(newCAs) != 3 || newCAs[2].Subject.CommonName != "authority" || newCAs[0].Subject.SerialNumber != "r2" {
		t.Errorf("a new kubeconfig trusts %d CAs, the first %s", len(newCAs), newCAs[0].Subject)
	}
	if !verifies(t, dir, newCertificate, oldCAs...) || !verifies(t, dir, oldCertificate, newCAs...) ||
		!verifies(t, dir, newCertificate, newCAs[0]) || verifies(t, dir, oldCertificate, newCAs[0]) {
		t.Error("between the steps, certificates are not verified as they should be")
	}
	for range 2 {
		if err := rotateKeys(dir, prepareCA("r2"), completeCA("r2")); err != nil {
			t.Fatal(err)
		}
	}
	certificate, CAs := signClient(t, dir)
	if len(CAs) != 1 || !verifies(t, dir, certificate, CAs...) || verifies(t, dir, certificate, oldCAs...) ||
		verifies(t, dir, oldCertificate, CAs...) || !verifies(t, dir, newCertificate, CAs...) {
		t.Error("after the second step, certificates are not verified as they should be")
	}
	names := slices.Sorted(maps.Keys(caFiles(t, dir)))
	if !slices.Equal(names, []string{caFile, caKeyFile}) {
		t.Errorf("after the second step there are %v", names)
	}
}

// A first step that was killed between any two files is completed by the next start, whatever that start orders.
// Meanwhile nothing is signed with a key that does not belong to the certificate.
func TestAnInterruptedRotationOfACAIsCompleted(t *testing.T) {
	files := []string{caEarlierFile, caFile, caKeyFile}
	for replaced := range len(files) + 1 {
		dir := caDir(t)
		before := caFiles(t, dir)
		present, err := readAuthority(dir)
		if err != nil {
			t.Fatal(err)
		}
		next, err := newCA(present.cert, present.key, "r1", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		next = append(next, present.pem...)
		write(t, dir, caNextFile, string(next))
		if err := finishCA(dir); err != nil {
			t.Fatal(err)
		}
		want := caFiles(t, dir)
		for _, name := range files[replaced:] { // as they were at the kill
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			if content, existed := before[name]; existed {
				write(t, dir, name, content)
			}
		}
		write(t, dir, caNextFile, string(next))
		if _, err := readAuthority(dir); (err != nil) != (replaced == 2) {
			t.Errorf("%d files replaced: the authority: %v", replaced, err)
		}
		if err := rotateKeys(dir, controlplane.Rotations{}, controlplane.Rotations{}); err != nil {
			t.Fatal(err)
		}
		if got := caFiles(t, dir); !maps.Equal(got, want) {
			t.Errorf("%d files replaced: the files are %v", replaced, slices.Sorted(maps.Keys(got)))
		}
		err = rotateKeys(dir, controlplane.Rotations{}, prepareCA("r1"))
		if err != nil || !maps.Equal(caFiles(t, dir), want) {
			t.Errorf("the same step again: %v", err)
		}
	}
}

// A plane that was taken over puts a link in the place of its directory of keys: nothing outside changes.
func TestTheCAOfAnotherPlaneIsNotRotated(t *testing.T) {
	other := caDir(t)
	before := caFiles(t, other)
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(other, "pki"), filepath.Join(dir, "pki")); err != nil {
		t.Fatal(err)
	}
	err := rotateKeys(dir, controlplane.Rotations{}, prepareCA("r1"))
	if err == nil || errors.Is(err, fs.ErrNotExist) || !maps.Equal(caFiles(t, other), before) {
		t.Errorf("a link in the place of pki: %v", err)
	}
}
