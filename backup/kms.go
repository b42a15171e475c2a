package backup

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
)

// WrappedKey is a data key as a KMS has encrypted it.
type WrappedKey struct {
	KeyID      string `json:"key_id"` // of the KMS's key
	Ciphertext []byte `json:"ciphertext"`
}

// KMS wraps data keys with keys that never leave it. Its methods may be called by many goroutines.
type KMS interface {
	// Wrap encrypts a data key with the current key.
	Wrap(ctx context.Context, dataKey []byte) (WrappedKey, error)
	// Unwrap decrypts a data key, also with an earlier key. The error names a key that is missing.
	Unwrap(ctx context.Context, w WrappedKey) ([]byte, error)
}

// KeyFile is a KMS whose keys are in a file, one a line: a name, a space, and 32 bytes in base64. The first key wraps;
// the others still unwrap. To rotate, put a new line before the others. Without the file no backup can be read.
type KeyFile struct {
	current string
	keys    map[string]cipher.AEAD
}

// ReadKeyFile reads the keys. Only the file's owner and group may read the file: the files of a Kubernetes Secret
// belong to root, and a pod reads them by its group.
func ReadKeyFile(path string) (*KeyFile, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	if info.Mode().Perm()&0o037 != 0 {
		return nil, fmt.Errorf("key file %s can be read or changed by others: chmod 600 %s", path, path)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	k, err := parseKeys(content)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return k, nil
}

func parseKeys(content []byte) (*KeyFile, error) {
	k := &KeyFile{keys: map[string]cipher.AEAD{}}
	number := 0
	for line := range bytes.Lines(content) {
		number++
		f := strings.Fields(string(line))
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if len(f) != 2 {
			return nil, fmt.Errorf("line %d is not NAME KEY", number)
		}
		key, err := base64.StdEncoding.DecodeString(f[1])
		if err != nil || len(key) != keySize {
			// Not the first word: it is the key when the two are in the wrong order.
			return nil, fmt.Errorf("the key of line %d is not %d bytes in base64 (make one: openssl rand -base64 %d)", number,
				keySize, keySize)
		}
		if _, isDuplicate := k.keys[f[0]]; isDuplicate {
			return nil, fmt.Errorf("key %s is there twice", f[0])
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		if k.keys[f[0]], err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return nil, err
		}
		if k.current == "" {
			k.current = f[0]
		}
	}
	if k.current == "" {
		return nil, fmt.Errorf("it has no key (make one: echo \"k1 $(openssl rand -base64 %d)\")", keySize)
	}
	return k, nil
}

// Wrap implements KMS.
func (k *KeyFile) Wrap(_ context.Context, dataKey []byte) (WrappedKey, error) {
	return WrappedKey{KeyID: k.current, Ciphertext: k.keys[k.current].Seal(nil, nil, dataKey, []byte(k.current))}, nil
}

// Unwrap implements KMS.
func (k *KeyFile) Unwrap(_ context.Context, w WrappedKey) ([]byte, error) {
	aead, ok := k.keys[w.KeyID]
	if !ok {
		return nil, fmt.Errorf("the key file has no key %q, which encrypts this backup", w.KeyID)
	}
	key, err := aead.Open(nil, nil, w.Ciphertext, []byte(w.KeyID))
	if err != nil || len(key) != keySize {
		return nil, fmt.Errorf("%w: its data key cannot be decrypted with key %s", ErrCorrupt, w.KeyID)
	}
	return key, nil
}

func newDataKey() ([]byte, error) {
	key := make([]byte, keySize)
	_, err := rand.Read(key)
	return key, err
}
