package process

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"atoll.dev/api/rotation"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/beneath"
)

// Files of keys below a plane's directory, as package kube/credentials makes them.
const (
	serviceAccountFile = "pki/service-account.key" // PEM: the first key signs, all verify
	encryptionFile     = "pki/encryption.yaml"     // the first key encrypts, all decrypt
	encryptedMark      = "etcd/secrets.encrypted"  // name of the key with which all Secrets are encrypted
	restoredKeysFile   = "etcd/secrets.keys"       // keys that decrypt the Secrets of restored data
)

const keyFileLimit = 1 << 20 // bytes

// errUnprepared is the error of the second step of a rotation whose first step the key files do not show.
var errUnprepared = errors.New("the rotation is not prepared")

// rotateKeys changes the key files of a stopped plane from those of the rotations have, with which it last started, to
// those of want. It may be interrupted and repeated: each file is replaced at once and names the rotation of its first
// key. A plane that has no key files yet makes new ones.
func rotateKeys(dir string, have, want controlplane.Rotations) error {
	if err := finishCA(dir); err != nil {
		return fmt.Errorf("the new CA: %w", err)
	}
	if want.CA != have.CA && want.CA.ID != "" {
		if err := rotateCA(dir, want.CA); err != nil {
			return fmt.Errorf("rotation %s of %s: %w", want.CA.ID, caFile, err)
		}
	}
	for _, k := range []struct {
		file       string
		have, want rotation.Order
		change     func(dir string, content []byte, r rotation.Order) ([]byte, error)
	}{
		{serviceAccountFile, have.ServiceAccount, want.ServiceAccount, rotateServiceAccountKey},
		{encryptionFile, have.Encryption, want.Encryption, rotateEncryptionKey},
	} {
		if k.want == k.have || k.want.ID == "" { // no order takes a rotation back
			continue
		}
		content, err := beneath.Read(dir, k.file, keyFileLimit)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("rotation %s: %w", k.want.ID, err)
		}
		changed, err := k.change(dir, content, k.want)
		if err == nil && changed != nil {
			err = replaceKeyFile(dir, k.file, changed)
		}
		if err != nil {
			return fmt.Errorf("rotation %s of %s: %w", k.want.ID, k.file, err)
		}
	}
	return nil
}

// replaceKeyFile replaces a key file of a stopped plane. No process of the plane runs, so nobody makes the directory a
// link after the check.
func replaceKeyFile(dir, name string, content []byte) error {
	path, err := keyFilePath(dir, name)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, content, 0o600)
}

// keyFilePath returns the path of a key file of a stopped plane. The error says that its directory is a link, or
// another thing that is no directory.
func keyFilePath(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	info, err := os.Lstat(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("%s is no directory", filepath.Dir(path))
	}
	return path, nil
}

const (
	privateBlock   = "EC PRIVATE KEY"
	publicBlock    = "PUBLIC KEY"
	rotationHeader = "Rotation" // of a private key in PEM: the rotation that made it
)

// rotateServiceAccountKey returns the next content of the file of the keys of service accounts; nil when it is right
// already. The first step keeps only the public half of the earlier keys: nobody signs with them any more. Errors never
// contain the content.
func rotateServiceAccountKey(_ string, content []byte, r rotation.Order) ([]byte, error) {
	var blocks []*pem.Block
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		blocks = append(blocks, block)
	}
	if len(blocks) == 0 || blocks[0].Type != privateBlock {
		return nil, errors.New("the file does not begin with an EC private key")
	}
	isNew := blocks[0].Headers[rotationHeader] == r.ID
	if r.Step == rotation.Complete {
		if !isNew {
			return nil, errUnprepared
		}
		if len(blocks) == 1 {
			return nil, nil
		}
		return pem.EncodeToMemory(blocks[0]), nil
	}
	if isNew {
		return nil, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	made := pem.Block{Type: privateBlock, Headers: map[string]string{rotationHeader: r.ID}, Bytes: der}
	next := pem.EncodeToMemory(&made)
	for _, block := range blocks {
		if block.Type == privateBlock {
			earlier, err := x509.ParseECPrivateKey(block.Bytes)
			if err != nil {
				return nil, errors.New("one of its keys cannot be read")
			}
			public, err := x509.MarshalPKIXPublicKey(earlier.Public())
			if err != nil {
				return nil, err
			}
			block = &pem.Block{Type: publicBlock, Bytes: public}
		}
		if block.Type == publicBlock {
			next = append(next, pem.EncodeToMemory(block)...)
		}
	}
	return next, nil
}

// encryption is upstream's EncryptionConfiguration, as far as a rotation changes it.
type encryption struct {
	APIVersion string               `json:"apiVersion"`
	Kind       string               `json:"kind"`
	Resources  []encryptedResources `json:"resources"`
}

type encryptedResources struct {
	Resources []string             `json:"resources"`
	Providers []encryptionProvider `json:"providers"`
}

// encryptionProvider has one member.
type encryptionProvider struct {
	Secretbox *secretbox     `json:"secretbox,omitempty"`
	AESGCM    map[string]any `json:"aesgcm,omitempty"`
	AESCBC    map[string]any `json:"aescbc,omitempty"`
	KMS       map[string]any `json:"kms,omitempty"`
	Identity  *struct{}      `json:"identity,omitempty"`
}

type secretbox struct {
	Keys []secretboxKey `json:"keys"`
}

type secretboxKey struct {
	Name   string `json:"name"`
	Secret string `json:"secret"`
}

// rotateEncryptionKey returns the next content of the encryption's configuration; nil when it is right already. The
// new key has the name of the rotation, so that the plane's mark shows when it encrypts all Secrets. The second step
// also removes the keys that came with restored data. Errors never contain the content.
func rotateEncryptionKey(dir string, content []byte, r rotation.Order) ([]byte, error) {
	var config encryption
	if yaml.UnmarshalStrict(content, &config) != nil || len(config.Resources) == 0 ||
		len(config.Resources[0].Providers) == 0 {
		return nil, errors.New("the file has no EncryptionConfiguration with a provider")
	}
	providers := &config.Resources[0].Providers
	first := (*providers)[0].Secretbox
	isNew := first != nil && len(first.Keys) > 0 && first.Keys[0].Name == r.ID
	if r.Step == rotation.Complete {
		if !isNew {
			return nil, errUnprepared
		}
		if _, err := os.Lstat(filepath.Join(dir, restoredKeysFile)); errors.Is(err, fs.ErrNotExist) && len(first.Keys) == 1 {
			return nil, nil // completed by an interrupted call
		}
		by, err := encryptedBy(dir)
		if err != nil {
			return nil, err
		}
		if by != r.ID {
			return nil, errors.New("not all Secrets are encrypted with the new key")
		}
		if err := os.Remove(filepath.Join(dir, restoredKeysFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		*providers = []encryptionProvider{{Secretbox: &secretbox{Keys: first.Keys[:1]}}, {Identity: &struct{}{}}}
		return yaml.Marshal(config)
	}
	if isNew {
		return nil, nil
	}
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return nil, err
	}
	key := secretboxKey{Name: r.ID, Secret: base64.StdEncoding.EncodeToString(secret)}
	if first != nil {
		first.Keys = append([]secretboxKey{key}, first.Keys...)
	} else {
		*providers = append([]encryptionProvider{{Secretbox: &secretbox{Keys: []secretboxKey{key}}}}, *providers...)
	}
	return yaml.Marshal(config)
}

// encryptedBy returns the name of the key with which all Secrets of a plane are encrypted; "" for none. The plane
// writes the mark.
func encryptedBy(dir string) (string, error) {
	content, err := beneath.Read(dir, encryptedMark, 1<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(content), err
}

// EncryptedBy returns the ID of the rotation whose key encrypts all Secrets of a plane; "" while none does.
func (r *Runtime) EncryptedBy(id controlplane.ID) (rotation string, err error) {
	x := r.find(id)
	if x == nil {
		return "", nil
	}
	by, err := encryptedBy(x.dir)
	if err != nil {
		return "", fmt.Errorf("plane %s: %w", id, err)
	}
	if by != x.observation().LastStart.Rotations.Encryption.ID { // a key that no rotation has made
		return "", nil
	}
	return by, nil
}
