package credentials

import (
	"bytes"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
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
	for _, name := range []string{"serving.pem", "admin.pem", "admin.kubeconfig", "scheduler.kubeconfig", "front-proxy-client.pem", "kubelet-client.pem"} {
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
