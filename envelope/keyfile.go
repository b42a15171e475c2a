package envelope

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"atoll.dev/internal/atomicfile"
)

// rereadAfter is how long a KeyFile uses the keys that it has read before it reads the file again.
const rereadAfter = time.Second

// ErrReplacedKey means that a key file has another key under the name of an earlier one. What the earlier key has
// wrapped would be lost with the process, so a KeyFile wraps nothing until the earlier line is back.
var ErrReplacedKey = errors.New("another key has the name of an earlier one")

// currentKeys returns all keys, and reads the file again when its keys are older than rereadAfter. After an
// ErrReplacedKey the keys are those of before: they still unwrap.
func (k *KeyFile) currentKeys() (keyList, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.path != "" && time.Since(k.readAt) > rereadAfter {
		if keys, err := readKeys(k.path); err == nil {
			k.replace(keys)
		}
		k.readAt = time.Now()
	}
	return k.keys, k.refused
}

// replace uses the keys of a file that was read again, unless one of them has the name of an earlier key. The caller
// holds the lock.
func (k *KeyFile) replace(keys keyList) {
	k.refused = nil
	for name, digest := range keys.digests {
		if earlier, isKnown := k.seen[name]; isKnown && earlier != digest {
			k.refused = fmt.Errorf("key file %s: %w: put the earlier line of %s back, and give the new key another name",
				k.path, ErrReplacedKey, name)
			return
		}
	}
	maps.Copy(k.seen, keys.digests)
	k.keys = keys
}

// ParseKeys returns the keys that a key file with this content has.
func ParseKeys(content []byte) (*KeyFile, error) {
	keys, err := parseKeys(content)
	if err != nil {
		return nil, err
	}
	return &KeyFile{keys: keys}, nil
}

// NewKeyLine returns the line of a key file for a new key. The name has no space and does not begin with #.
func NewKeyLine(name string) []byte {
	key := make([]byte, keySize)
	rand.Read(key) // it never returns an error
	return fmt.Appendf(nil, "%s %s\n", name, base64.StdEncoding.EncodeToString(key))
}

// NewKeyName returns a name that no other key has.
func NewKeyName() string {
	random := make([]byte, 4)
	rand.Read(random) // it never returns an error
	return "k-" + hex.EncodeToString(random)
}

// EnsureKeyFile makes a key file with one key, for its owner alone, and its directory. It changes nothing when the
// file exists. The key has a name of its own, so that content that was sealed with a lost file is reported as sealed
// with a missing key, not as damaged.
func EnsureKeyFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	err := atomicfile.Create(path, NewKeyLine(NewKeyName()), 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// AddKey adds a new key to a key file, behind the others, and returns its name. Processes that read the file can unwrap
// with the new key; Promote makes them wrap with it.
func AddKey(path string) (name string, err error) {
	name = NewKeyName()
	return name, changeKeyFile(path, func(content []byte) ([]byte, error) {
		if n := len(content); n > 0 && content[n-1] != '\n' {
			content = append(content, '\n')
		}
		return append(content, NewKeyLine(name)...), nil
	})
}

// Promote moves the line of a key before the others, so that new data keys are wrapped with this key.
func Promote(path, name string) error {
	return changeKeyFile(path, func(content []byte) ([]byte, error) {
		var first, others []byte
		for line := range bytes.Lines(content) {
			if bytes.HasPrefix(line, []byte(name+" ")) {
				first = append(first, line...)
			} else {
				others = append(others, line...)
			}
		}
		if first == nil {
			return nil, fmt.Errorf("key file %s has no key %s", path, name)
		}
		return append(bytes.TrimRight(first, "\n"), append([]byte("\n"), others...)...), nil
	})
}

// changeKeyFile replaces the content of a key file by the result of change. It refuses to change an invalid file, and
// a result that is invalid. Two processes that change the file at the same time lose no key.
func changeKeyFile(path string, change func([]byte) ([]byte, error)) error {
	return atomicfile.Change(path, 0o600, func([]byte) ([]byte, error) {
		if _, err := readKeys(path); err != nil {
			return nil, err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if content, err = change(content); err != nil {
			return nil, err
		}
		_, err = parseKeys(content)
		return content, err
	})
}
