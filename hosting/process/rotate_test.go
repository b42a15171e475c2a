package process

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/util/keyutil"

	"atoll.dev/api/rotation"
	"atoll.dev/hosting/controlplane"
)

// keyFiles makes a plane's directory with key files as atoll-kube makes them.
func keyFiles(t *testing.T) (dir string, read func(name string) string) {
	t.Helper()
	dir = t.TempDir()
	signing, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	const config = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n" +
		"- providers:\n  - secretbox:\n      keys:\n      - name: first\n        secret: QUFBQQ==\n  - identity: {}\n" +
		"  resources:\n  - secrets\n"
	for _, name := range []string{"pki", "etcd"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, serviceAccountFile, string(signing))
	write(t, dir, encryptionFile, config)
	write(t, dir, encryptedMark, "first")
	return dir, func(name string) string {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// publicKeys returns the number of keys that Kubernetes verifies tokens with.
func publicKeys(t *testing.T, content string) int {
	t.Helper()
	keys, err := keyutil.ParsePublicKeysPEM([]byte(content))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keyutil.ParsePrivateKeyPEM([]byte(content)); err != nil {
		t.Fatal(err)
	}
	return len(keys)
}

// An interrupted step is completed by the next one, which makes no second key. A second step without the first, or
// before the new key encrypts all Secrets, changes nothing. Keys of restored data go with the second step.
func TestKeyFilesAreRotatedOnce(t *testing.T) {
	dir, read := keyFiles(t)
	none := controlplane.Rotations{}
	prepare := controlplane.Rotations{ServiceAccount: rotation.Order{ID: "r1", Step: rotation.Prepare},
		Encryption: rotation.Order{ID: "r1", Step: rotation.Prepare}}
	complete := controlplane.Rotations{ServiceAccount: rotation.Order{ID: "r1", Step: rotation.Complete},
		Encryption: rotation.Order{ID: "r1", Step: rotation.Complete}}
	oldSigning, oldConfig := read(serviceAccountFile), read(encryptionFile)
	for _, k := range []rotation.Key{rotation.ServiceAccountKey, rotation.EncryptionKey} {
		if err := rotateKeys(dir, none, none.With(k, complete.Of(k))); !errors.Is(err, errUnprepared) {
			t.Errorf("the second step of %s without the first: %v", k, err)
		}
	}
	if read(serviceAccountFile) != oldSigning || read(encryptionFile) != oldConfig {
		t.Error("a refused step changed a file")
	}

	for range 2 {
		if err := rotateKeys(dir, none, prepare); err != nil {
			t.Fatal(err)
		}
	}
	prepared := read(serviceAccountFile) + read(encryptionFile)
	if err := rotateKeys(dir, prepare, none); err != nil || read(serviceAccountFile)+read(encryptionFile) != prepared {
		t.Errorf("an order of before the rotation changed a file: %v", err)
	}
	if n := publicKeys(t, read(serviceAccountFile)); n != 2 {
		t.Errorf("tokens are verified with %d keys, want 2", n)
	}
	if strings.Count(read(serviceAccountFile), "PRIVATE KEY-----\n") != 2 { // begin and end
		t.Errorf("the private half of the old key is there:\n%s", read(serviceAccountFile))
	}
	config := read(encryptionFile)
	if strings.Count(config, "name: ") != 2 || strings.Index(config, "name: r1") > strings.Index(config, "name: first") {
		t.Errorf("the new key is not before the old one:\n%s", config)
	}

	onlyEncryption := prepare.With(rotation.EncryptionKey, complete.Encryption)
	if err := rotateKeys(dir, prepare, onlyEncryption); err == nil || read(encryptionFile) != config {
		t.Errorf("the second step before all Secrets are encrypted: %v", err)
	}
	write(t, dir, encryptedMark, "r1")
	write(t, dir, restoredKeysFile, oldConfig)
	for range 2 {
		if err := rotateKeys(dir, prepare, complete); err != nil {
			t.Fatal(err)
		}
	}
	if n := publicKeys(t, read(serviceAccountFile)); n != 1 {
		t.Errorf("tokens are verified with %d keys, want 1", n)
	}
	if config := read(encryptionFile); strings.Count(config, "name: ") != 1 || !strings.Contains(config, "name: r1") ||
		!strings.Contains(config, "identity") {
		t.Errorf("after the second step:\n%s", config)
	}
	if _, err := os.Lstat(filepath.Join(dir, restoredKeysFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the keys of restored data: %v", err)
	}

	write(t, dir, restoredKeysFile, oldConfig) // data is restored later, and its mark is not there
	if err := os.Remove(filepath.Join(dir, encryptedMark)); err != nil {
		t.Fatal(err)
	}
	if err := rotateKeys(dir, complete, complete); err != nil {
		t.Errorf("a start with restored data after a rotation: %v", err)
	}
	read(restoredKeysFile)
}

// A plane that was taken over puts a link in the place of a key file, or of its directory: nothing outside changes.
func TestKeyFilesOfOthersAreNotRotated(t *testing.T) {
	prepare := controlplane.Rotations{ServiceAccount: rotation.Order{ID: "r1", Step: rotation.Prepare}}
	for _, name := range []string{serviceAccountFile, "pki"} {
		dir, _ := keyFiles(t)
		other, read := keyFiles(t)
		before := read(serviceAccountFile)
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(other, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if err := rotateKeys(dir, controlplane.Rotations{}, prepare); err == nil || read(serviceAccountFile) != before {
			t.Errorf("a link in the place of %s: %v", name, err)
		}
	}
}
