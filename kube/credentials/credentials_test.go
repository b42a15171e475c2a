package credentials

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func options(dir string) Options {
	return Options{Dir: dir, Name: "test", Server: "https://127.0.0.1:6443", ServiceIP: net.IPv4(10, 96, 0, 1), Hosts: []string{"127.0.0.1", "example.org"}}
}

// ensure calls Ensure and returns the content of every file.
func ensure(t *testing.T, o Options, now time.Time) (Files, map[string][]byte) {
	t.Helper()
	files, err := Ensure(o, now)
	if err != nil {
		t.Fatal(err)
	}
	content := map[string][]byte{}
	err = filepath.WalkDir(o.Dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			content[filepath.Base(path)], err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, content
}

func TestFilesAreReusedWhileTheyAreGood(t *testing.T) {
	o := options(t.TempDir())
	_, first := ensure(t, o, epoch)
	_, second := ensure(t, o, epoch.Add(leafLife-leafRenew-2*time.Hour))
	for name := range first {
		if !bytes.Equal(first[name], second[name]) {
			t.Errorf("%s changed", name)
		}
	}
}

func TestCertificatesAreRenewedBeforeTheyEnd(t *testing.T) {
	o := options(t.TempDir())
	_, first := ensure(t, o, epoch)
	later := epoch.Add(leafLife - leafRenew + time.Hour)
	_, second := ensure(t, o, later)
	for _, name := range []string{"serving.pem", "admin.pem", "admin.kubeconfig", "front-proxy-client.pem", "kubelet-client.pem"} {
		if bytes.Equal(first[name], second[name]) {
			t.Errorf("%s was not renewed", name)
		}
	}
	for _, name := range []string{"ca.crt", "ca.key", "front-proxy-ca.crt", "service-account.key", "encryption.yaml"} {
		if !bytes.Equal(first[name], second[name]) {
			t.Errorf("%s changed", name)
		}
	}
}

func TestTheAuthorityIsRenewedWithItsKey(t *testing.T) {
	o := options(t.TempDir())
	_, first := ensure(t, o, epoch)
	_, second := ensure(t, o, epoch.Add(authorityLife-authorityRenew+time.Hour))
	if bytes.Equal(first["ca.crt"], second["ca.crt"]) {
		t.Error("the authority was not renewed")
	}
	if !bytes.Equal(first["ca.key"], second["ca.key"]) {
		t.Error("the authority has another key, so that nobody trusts it any more")
	}
}

func TestServingCertificateFollowsItsHosts(t *testing.T) {
	o := options(t.TempDir())
	_, first := ensure(t, o, epoch)
	o.Hosts = append(o.Hosts, "other.example.org")
	_, second := ensure(t, o, epoch)
	if bytes.Equal(first["serving.pem"], second["serving.pem"]) {
		t.Fatal("the serving certificate did not change")
	}
	cert, err := parseCertificate(second["serving.pem"])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(second["ca.crt"])
	for _, host := range []string{"other.example.org", "example.org", "127.0.0.1", "::1", "localhost", "kubernetes.default.svc", "10.96.0.1"} {
		if _, err := cert.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: epoch}); err != nil {
			t.Error(err)
		}
	}
}

func TestKubeconfigFollowsTheServer(t *testing.T) {
	o := options(t.TempDir())
	ensure(t, o, epoch)
	o.Server = "https://127.0.0.1:7443"
	files, _ := ensure(t, o, epoch)
	config, err := clientcmd.LoadFromFile(files.AdminKubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if server := config.Clusters["test"].Server; server != o.Server {
		t.Errorf("server %s, want %s", server, o.Server)
	}
}

func TestAnInterruptedFirstStartIsCompleted(t *testing.T) {
	o := options(t.TempDir())
	files, _ := ensure(t, o, epoch)
	for _, lost := range []string{files.CA, files.Serving, files.AdminKubeconfig, files.ServiceAccountKey} {
		if err := os.Remove(lost); err != nil {
			t.Fatal(err)
		}
		if _, err := Ensure(o, epoch); err != nil {
			t.Errorf("without %s: %v", lost, err)
		}
	}
}

// A plane of before there was encryption gets a key; one whose Secrets are encrypted gets no other.
func TestAKeyOfSecretsIsNeverReplaced(t *testing.T) {
	o := options(t.TempDir())
	files, first := ensure(t, o, epoch)
	if info, err := os.Stat(files.Encryption); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of the key: %v, %v", info, err)
	}
	key, err := files.EncryptionKey()
	if err != nil || len(key) != 8 {
		t.Errorf("key %q, %v", key, err)
	}
	os.Remove(files.Encryption)
	files, second := ensure(t, o, epoch)
	if bytes.Equal(first["encryption.yaml"], second["encryption.yaml"]) {
		t.Error("two planes have the same key")
	}
	if err := os.Mkdir(filepath.Join(o.Dir, "etcd"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := files.MarkEncrypted("key-1"); err != nil {
		t.Fatal(err)
	}
	os.Remove(files.Encryption)
	if _, err := Ensure(o, epoch); !errors.Is(err, ErrDamaged) {
		t.Errorf("without the key of its Secrets: %v, want ErrDamaged", err)
	}
	if _, err := os.Stat(files.Encryption); err == nil {
		t.Error("there is another key")
	}
}

// A plane that starts with the data of another one reads its Secrets, and encrypts them with its own key.
func TestKeysOfRestoredDataAreAddedOnce(t *testing.T) {
	_, other := ensure(t, options(t.TempDir()), epoch)
	o := options(t.TempDir())
	if err := os.Mkdir(filepath.Join(o.Dir, "etcd"), 0o700); err != nil {
		t.Fatal(err)
	}
	restored := filepath.Join(o.Dir, "etcd", "secrets.keys")
	if err := os.WriteFile(restored, other["encryption.yaml"], 0o600); err != nil {
		t.Fatal(err)
	}
	files, first := ensure(t, o, epoch)
	config, err := readEncryption(files.Encryption)
	if err != nil {
		t.Fatal(err)
	}
	keys := config.Resources[0].Providers[0].Secretbox.Keys
	if len(keys) != 2 || !bytes.Contains(other["encryption.yaml"], []byte(keys[1].Secret)) {
		t.Fatalf("%d keys; the second one must be that of the data", len(keys))
	}
	if key, err := files.EncryptionKey(); err != nil || key != keys[0].Name {
		t.Errorf("key %q, %v; want the plane's own", key, err)
	}
	if _, second := ensure(t, o, epoch); !bytes.Equal(first["encryption.yaml"], second["encryption.yaml"]) {
		t.Error("the next start changes the keys")
	}
	if err := os.WriteFile(restored, []byte("damage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(o, epoch); !errors.Is(err, ErrDamaged) {
		t.Errorf("with damaged keys of the data: %v, want ErrDamaged", err)
	}
}

func TestDamageIsReported(t *testing.T) {
	for _, name := range []string{"ca.crt", "ca.key", "serving.pem", "admin.pem", "service-account.key",
		"encryption.yaml"} {
		t.Run(name, func(t *testing.T) {
			o := options(t.TempDir())
			ensure(t, o, epoch)
			path := filepath.Join(o.Dir, "pki", name)
			if err := os.WriteFile(path, []byte("damage"), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Ensure(o, epoch); !errors.Is(err, ErrDamaged) {
				t.Errorf("got %v, want ErrDamaged", err)
			}
		})
	}
	t.Run("an authority without its key", func(t *testing.T) {
		o := options(t.TempDir())
		files, _ := ensure(t, o, epoch)
		os.Remove(files.CAKey)
		if _, err := Ensure(o, epoch); !errors.Is(err, ErrDamaged) {
			t.Errorf("got %v, want ErrDamaged", err)
		}
	})
}

// Between the steps of a rotation of the CA, a client or node that trusts only the earlier CA verifies every
// certificate of the plane. New kubeconfigs trust both CAs. After the second step only the new one is left.
func TestCertificatesOfANewAuthorityAreVerifiedByAnEarlierOne(t *testing.T) {
	o := options(t.TempDir())
	files, before := ensure(t, o, epoch)
	earlier, err := loadAuthority(files.CA, files.CAKey, "", epoch)
	if err != nil {
		t.Fatal(err)
	}
	key, keyPEM, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: serial(), Subject: pkix.Name{CommonName: "atoll-test", SerialNumber: "r1"},
		NotBefore: epoch.Add(-backdate), NotAfter: epoch.Add(authorityLife), KeyUsage: x509.KeyUsageCertSign,
		BasicConstraintsValid: true, IsCA: true}
	sign := func(parent *x509.Certificate, signer *ecdsa.PrivateKey) []byte {
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	own := sign(template, key)
	for path, content := range map[string][]byte{files.CA: own, files.CAKey: keyPEM,
		files.CAEarlier: slices.Concat(sign(earlier.cert, earlier.key), earlier.pem)} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	files, between := ensure(t, o, epoch)
	if !bytes.Equal(between["ca-bundle.crt"], slices.Concat(own, earlier.pem)) || !bytes.Equal(between["ca.crt"], own) {
		t.Error("the new CA is not before the earlier one, or not alone where it signs")
	}
	verify := func(content, roots []byte) error {
		chain, _ := splitPair(content)
		v := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: epoch,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
		v.Roots.AppendCertsFromPEM(roots)
		cert, err := parseCertificate(chain)
		if err != nil {
			t.Fatal(err)
		}
		_, rest := pem.Decode(chain)
		v.Intermediates.AppendCertsFromPEM(rest)
		_, err = cert.Verify(v)
		return err
	}
	for _, name := range []string{"serving.pem", "kubelet-client.pem", "admin.pem"} {
		if bytes.Equal(before[name], between[name]) {
			t.Errorf("%s was not signed again", name)
		}
		for roots, content := range map[string][]byte{"the earlier CA": earlier.pem, "the new CA": own} {
			if err := verify(between[name], content); err != nil {
				t.Errorf("%s, verified by %s: %v", name, roots, err)
			}
		}
	}
	config, err := clientcmd.Load(between["admin.kubeconfig"])
	if err != nil || !bytes.Equal(config.Clusters["test"].CertificateAuthorityData, between["ca-bundle.crt"]) {
		t.Errorf("the kubeconfig does not trust both CAs: %v", err)
	}
	_, again := ensure(t, o, epoch)
	if !bytes.Equal(again["serving.pem"], between["serving.pem"]) {
		t.Error("a start without a change signs again")
	}

	if err := os.Remove(files.CAEarlier); err != nil {
		t.Fatal(err)
	}
	_, after := ensure(t, o, epoch)
	if !bytes.Equal(after["ca-bundle.crt"], own) || verify(after["serving.pem"], earlier.pem) == nil ||
		verify(after["serving.pem"], own) != nil {
		t.Error("after the second step the earlier CA counts, or the new one does not")
	}
	_, renewed := ensure(t, o, epoch.Add(authorityLife-authorityRenew+time.Hour))
	present, err := parseCertificate(own)
	if err != nil {
		t.Fatal(err)
	}
	next, err := parseCertificate(renewed["ca.crt"])
	if err != nil || bytes.Equal(next.Raw, present.Raw) || !bytes.Equal(next.RawSubject, present.RawSubject) {
		t.Errorf("the renewed CA is the same, or has another name than what it has signed says: %v", err)
	}
}

// Nothing uses the clients with all rights that earlier versions made for parts of the plane.
func TestCredentialsOfEarlierVersionsAreRemoved(t *testing.T) {
	o := options(t.TempDir())
	ensure(t, o, epoch)
	for _, name := range unused {
		if err := os.WriteFile(filepath.Join(o.Dir, name), []byte("a key"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ensure(t, o, epoch)
	for _, name := range unused {
		if _, err := os.Stat(filepath.Join(o.Dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
