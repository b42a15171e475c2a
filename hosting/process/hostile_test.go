package process

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"atoll.dev/hosting/controlplane"
)

// openHome opens a runtime on a home and closes it at the end of the test.
func openHome(t *testing.T, dir string) *Runtime {
	t.Helper()
	r, err := New(Options{Dir: dir, Binaries: map[controlplane.Version]string{"1.36.3": "/nowhere"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	closeRuntime, err := r.Open(ctx, func(controlplane.ID) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); closeRuntime() })
	return r
}

func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Earlier runtimes kept their files in the planes' own directories. They are moved once; what a plane puts there
// afterwards is not read.
func TestFilesOfEarlierRuntimesAreMovedOnce(t *testing.T) {
	dir := t.TempDir()
	id := controlplane.ID{Namespace: "clusters-x", Name: "hc-x"}
	foreign := filepath.Join(t.TempDir(), "foreign")
	writeFiles(t, dir, map[string]string{
		"planes/clusters-x/hc-x/hosting.json":         `{"port":30123,"release":"1.36.3","born":true}`,
		"planes/clusters-x/hc-x/plane.log":            "a line",
		"planes/clusters-x/hc-x/restored-1/etcd/data": "restored",
		"planes/clusters-x/hc-x/etcd/data":            "data",
	})
	writeFiles(t, filepath.Dir(foreign), map[string]string{"foreign": "foreign"})
	if err := os.Symlink(foreign, filepath.Join(dir, "planes/clusters-x/hc-x/plane.log.1")); err != nil {
		t.Fatal(err)
	}
	t.Run("moved", func(t *testing.T) {
		r := openHome(t, dir)
		o, err := r.Observe(id)
		if err != nil || o.Backend != "127.0.0.1:30123" || o.LastStart.Release != "1.36.3" || !o.HasData {
			t.Errorf("%+v, %v", o, err)
		}
		for path, want := range map[string]string{logPath(r.StateDir(id)): "a line",
			filepath.Join(r.Staging(id, "1"), "etcd", "data"): "restored", filepath.Join(r.Dir(id), "etcd", "data"): "data",
			foreign: "foreign"} {
			if got, err := os.ReadFile(path); err != nil || string(got) != want {
				t.Errorf("%s: %q, %v", path, got, err)
			}
		}
		for _, path := range []string{filepath.Join(r.Dir(id), "plane.log.1"), logPath(r.StateDir(id)) + ".1"} {
			if _, err := os.Lstat(path); err == nil {
				t.Errorf("%s is there", path)
			}
		}
	})
	t.Run("not read again", func(t *testing.T) {
		writeFiles(t, dir, map[string]string{"planes/clusters-x/hc-x/hosting.json": `{"port":5432,"release":"9.9.9"}`})
		r := openHome(t, dir)
		if o, err := r.Observe(id); err != nil || o.Backend != "127.0.0.1:30123" || o.LastStart.Release != "1.36.3" {
			t.Errorf("%+v, %v", o, err)
		}
	})
}

// A plane that was taken over puts a link to the authority of another plane into its directory. It gets no certificate
// of that authority.
func TestTheAuthorityOfAnotherPlaneSignsNothing(t *testing.T) {
	home := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request := controlplane.CertificateRequest{PublicKey: key.Public(), CommonName: "u", Organization: "g",
		Expires: time.Now().Add(time.Hour)}
	victim := filepath.Join(home, "victim")
	writeAuthority(t, victim, key)
	if _, err := Sign(victim, request, time.Now()); err != nil {
		t.Fatalf("the plane's own authority: %v", err)
	}
	for name, links := range map[string]map[string]string{
		"files":     {"pki/ca.crt": "../../victim/pki/ca.crt", "pki/ca.key": "../../victim/pki/ca.key"},
		"directory": {"pki": "../victim/pki"},
	} {
		dir := filepath.Join(home, name)
		for link, target := range links {
			path := filepath.Join(dir, link)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.Symlink(target, path)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Sign(dir, request, time.Now()); err == nil {
			t.Errorf("%s: the authority of the other plane has signed", name)
		}
	}
}

// writeAuthority writes an authority as a plane does.
func writeAuthority(t *testing.T, dir string, key *ecdsa.PrivateKey) {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writeFiles(t, dir, map[string]string{
		"pki/ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})),
		"pki/ca.key": string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})),
	})
}
