package envelope

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"time"
)

// WrappedKey is a data key as a KMS has encrypted it.
type WrappedKey struct {
	KeyID      string `json:"key_id"` // of the KMS's key
	Ciphertext []byte `json:"ciphertext"`
	// Annotations are further values that a KMS needs to unwrap the key. They are not secret. A KeyFile makes none.
	Annotations map[string][]byte `json:"annotations,omitempty"`
}

// KMS wraps data keys with keys that never leave it. Its methods may be called by many goroutines, and each returns
// soon after its context has ended. KeyFile and kms.Plugin, which calls an external program, implement it; the suite
// kmstest.Run tests both.
type KMS interface {
	// Wrap encrypts a data key with the current key. The name of the current key is not secret, and changes with each
	// rotation.
	Wrap(ctx context.Context, dataKey []byte) (WrappedKey, error)
	// Unwrap decrypts a data key, also with an earlier key. The error names a missing key. It is both ErrWrongKey and
	// ErrCorrupt when the KMS knows that it never wrapped this data key, and neither while the KMS cannot decide that.
	Unwrap(ctx context.Context, w WrappedKey) ([]byte, error)
}

// KeyFile is a KMS whose keys are in a file, one a line: a name, a space, and 32 bytes in base64. The first key wraps;
// the others still unwrap. To rotate, append a new line, and move it before the others when every process has read the
// file. Without the file nothing that was sealed with its keys can be read. A name belongs to one key for ever: while
// the file has another key under that name, Wrap fails with ErrReplacedKey. While the file is invalid, the KeyFile uses
// the last valid keys, and Problem returns the reason. Many goroutines may use a KeyFile.
type KeyFile struct {
	path string // "": the keys never change

	mu         sync.Mutex
	readAt     time.Time
	keys       keyList
	seen       map[string][sha256.Size]byte // of every key that the file had, by name
	refused    error                        // an ErrReplacedKey: Wrap fails with it
	unreadable error                        // of the last read; keys is the result of an earlier read
}

// keyList are the keys of a file.
type keyList struct {
	current string // name of the key that wraps
	byName  map[string]cipher.AEAD
	digests map[string][sha256.Size]byte // of the keys
}

// ReadKeyFile reads the keys. It reads the file again while the keys are used, so that a rotation needs no restart.
// Only the file's owner and group may read the file: the files of a Kubernetes Secret belong to root, and a pod reads
// them by its group.
func ReadKeyFile(path string) (*KeyFile, error) {
	keys, err := readKeys(path)
	if err != nil {
		return nil, err
	}
	return &KeyFile{path: path, readAt: time.Now(), keys: keys, seen: maps.Clone(keys.digests)}, nil
}

func readKeys(path string) (none keyList, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return none, fmt.Errorf("key file: %w", err)
	}
	if info.Mode().Perm()&0o037 != 0 {
		return none, fmt.Errorf("key file %s can be read or changed by others: chmod 600 %s", path, path)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return none, fmt.Errorf("key file: %w", err)
	}
	keys, err := parseKeys(content)
	if err != nil {
		return none, fmt.Errorf("key file %s: %w", path, err)
	}
	return keys, nil
}

func parseKeys(content []byte) (k keyList, err error) {
	k.byName, k.digests = map[string]cipher.AEAD{}, map[string][sha256.Size]byte{}
	number := 0
	for line := range bytes.Lines(content) {
		number++
		f := strings.Fields(string(line))
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if len(f) != 2 {
			return k, fmt.Errorf("line %d is not NAME KEY", number)
		}
		key, err := base64.StdEncoding.DecodeString(f[1])
		if err != nil || len(key) != keySize {
			// Do not print the first word: it is the key when the two are in the wrong order.
			return k, fmt.Errorf("the key of line %d is not %d bytes in base64 (make one: openssl rand -base64 %d)", number,
				keySize, keySize)
		}
		if _, isDuplicate := k.byName[f[0]]; isDuplicate {
			return k, fmt.Errorf("two lines have the key name %s", f[0])
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return k, err
		}
		k.digests[f[0]] = sha256.Sum256(key)
		if k.byName[f[0]], err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return k, err
		}
		if k.current == "" {
			k.current = f[0]
		}
	}
	if k.current == "" {
		return k, fmt.Errorf("it has no key (make one: echo \"k1 $(openssl rand -base64 %d)\")", keySize)
	}
	return k, nil
}

// Wrap implements KMS.
func (k *KeyFile) Wrap(_ context.Context, dataKey []byte) (WrappedKey, error) {
	keys, err := k.currentKeys()
	if err != nil {
		return WrappedKey{}, err
	}
	name := keys.current
	return WrappedKey{KeyID: name, Ciphertext: keys.byName[name].Seal(nil, nil, dataKey, []byte(name))}, nil
}

// Unwrap implements KMS.
func (k *KeyFile) Unwrap(_ context.Context, w WrappedKey) ([]byte, error) {
	keys, _ := k.currentKeys() // after an ErrReplacedKey the earlier keys unwrap
	aead, ok := keys.byName[w.KeyID]
	if !ok {
		return nil, fmt.Errorf("the key file has no key %q, which encrypts this", w.KeyID)
	}
	key, err := aead.Open(nil, nil, w.Ciphertext, []byte(w.KeyID))
	if err != nil || len(key) != keySize {
		return nil, fmt.Errorf("%w, %w: its data key cannot be decrypted with key %s; another key may have had this name",
			ErrWrongKey, ErrCorrupt, w.KeyID)
	}
	return key, nil
}
