package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/beneath"
)

// keysLimit bounds the size of all keys of a plane together, in bytes.
const keysLimit = 4 << 20

// maxKeys bounds the number of a plane's keys.
const maxKeys = 1000

// Keys are the keys and certificates of a plane: the content of the files in its directory pki, by name. A plane that
// is restored elsewhere with its keys keeps its authority and its issuer, and the credentials that they have signed.
type Keys map[string][]byte

// ReadKeys reads the regular files of the directory pki of a plane's directory. It follows no link: the plane, which
// may be hostile, can write there at any time, and its backup must never get a file of another plane or of the machine.
func ReadKeys(dir string) (Keys, error) {
	const pki = "pki"
	names, err := beneath.List(dir, pki, maxKeys)
	if err != nil {
		return nil, err
	}
	keys, size := Keys{}, 0
	for _, name := range names {
		content, err := beneath.Read(dir, filepath.Join(pki, name), int64(keysLimit-size))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, beneath.ErrKind) { // a temporary file of a renewal; a link
			continue
		}
		if errors.Is(err, beneath.ErrTooLarge) {
			return nil, fmt.Errorf("the files in %s have more than %d bytes", filepath.Join(dir, pki), keysLimit)
		}
		if err != nil {
			return nil, err
		}
		size += len(content)
		keys[name] = content
	}
	return keys, nil
}

// Write makes the directory pki with the keys. The directory must not exist; one rename makes it, with all keys.
func (k Keys) Write(pki string) (err error) {
	if _, err := os.Lstat(pki); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s exists already", pki)
	}
	staging := pki + ".restoring"
	if err := os.RemoveAll(staging); err != nil {
		return err
	}
	if err := os.MkdirAll(staging, 0o700); err != nil {
		return err
	}
	for name, content := range k {
		if !filepath.IsLocal(name) || filepath.Base(name) != name {
			return fmt.Errorf("%w: a key is named %q", ErrCorrupt, name)
		}
		if err := atomicfile.Write(filepath.Join(staging, name), content, 0o600); err != nil {
			return err
		}
	}
	if err := os.Rename(staging, pki); err != nil { // a directory, which atomicfile does not write
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(pki))
}

// Names of the files that have the encryption keys of Secrets, as atoll-kube reads them: encryptionFile in a plane's
// directory pki, restoredKeysFile in its directory etcd beside restored data.
const (
	encryptionFile   = "encryption.yaml"
	restoredKeysFile = "secrets.keys"
)

// WriteEncryption writes the keys that encrypt Secrets into the directory etcd of restored data, so that every plane
// that starts with the data can read its Secrets. Backups of early versions, which did not encrypt Secrets, have no
// such keys.
func (k Keys) WriteEncryption(etcd string) error {
	content, isThere := k[encryptionFile]
	if !isThere {
		return nil
	}
	return atomicfile.Write(filepath.Join(etcd, restoredKeysFile), content, 0o600)
}

// storeKeys stores the plane's keys and records their checksum in the manifest.
func (c *chain) storeKeys(m *Manifest) error {
	if c.f.o.Keys == nil {
		return nil
	}
	keys, err := c.f.o.Keys()
	if err != nil {
		return fmt.Errorf("reading the plane's keys: %w", err)
	}
	plain, err := json.Marshal(keys)
	if err != nil {
		return err
	}
	name := c.prefix + keysObject
	object, err := c.key.Seal(name, plain)
	if err != nil {
		return err
	}
	if err := c.f.put(c.ctx, name, object); err != nil {
		return err
	}
	m.Keys = &Part{Size: len(object), SHA256: sha256Of(object)}
	return nil
}

// readKeys returns the plane's keys as of the chain's snapshot; nil when the chain has none.
func (r *chainReader) readKeys(ctx context.Context) (Keys, error) {
	if r.manifest.Keys == nil {
		return nil, nil
	}
	name := r.prefix + keysObject
	object, err := r.store.Get(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("%w: %s is missing", ErrCorrupt, name)
	}
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(sha256Of(object), r.manifest.Keys.SHA256) {
		return nil, fmt.Errorf("%s: %w: its checksum differs", name, ErrCorrupt)
	}
	plain, err := r.key.Open(name, object)
	if err != nil {
		return nil, err
	}
	var keys Keys
	if err := json.Unmarshal(plain, &keys); err != nil {
		return nil, fmt.Errorf("%s: %w: its content is not JSON of keys", name, ErrCorrupt)
	}
	return keys, nil
}
